"""Proofs of schedules with real processes, in a short form for the tests and a long form for `scripts/prove/live
schedules`.

- `many`: a queue with very many schedules: the time to store the schedules, their memory, and the cost of a claim.
- `minute`: all schedules of a minute, fired by two workers, also during a failover of Sentinel.
- `restarts`: one schedule through rolling restarts of its workers. `tasks`, `commands`: the apps; the commands.
- `declaring`: old and new code that repeatedly declare one schedule at the same time.
"""
