"""Caps with real workers, on a real server: what the tests show in short and `scripts/caps-live` at length."""
