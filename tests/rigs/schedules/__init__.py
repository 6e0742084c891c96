"""Schedules with real processes: what the tests show in short and `scripts/prove/live schedules` at length.

- `many`: a queue with very many schedules: how fast they are stored, what they take, and what a claim costs.
- `minute`: all schedules of a minute, fired by two workers; and through the failover of Sentinel.
- `restarts`: one schedule through rolling restarts of its workers.
- `declaring`: old and new code that declares one schedule at once, again and again.
- `tasks`, `commands`: the apps of the workers; the commands.
"""
