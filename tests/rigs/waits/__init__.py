"""Whether each wait ends with its job, and how soon, while what tells of ends fails: see scripts/prove/live waits."""
