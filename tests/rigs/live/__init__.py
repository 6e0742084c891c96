"""Caps with real workers, on a real server: what the tests show in short and `scripts/prove/live caps` at length."""
