"""Tests caps with real workers on a real server. The tests run a short form, and `scripts/prove/live caps` runs a long
form."""
