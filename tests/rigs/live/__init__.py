"""Caps with real workers on a real server: a short form in the tests, a long one in `scripts/prove/live caps`."""
