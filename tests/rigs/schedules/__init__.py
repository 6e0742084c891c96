"""Proofs of schedules with real processes. The tests run them briefly, and `scripts/prove/live schedules` for long.

- `many`: a queue with very many schedules: the time to store the schedules, their memory, and the cost of a claim.
- `minute`: all schedules of a minute, fired by two workers, also during a failover of Sentinel.
- `restarts`: one schedule while its workers are restarted.
- `declaring`: old and new code that declare one schedule at the same time.
- `tasks`: the apps of the workers; `commands`: the command line.
"""
