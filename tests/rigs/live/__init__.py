"""Tests of caps with real workers on a real server. `scripts/prove/live caps` runs them in a long form."""
