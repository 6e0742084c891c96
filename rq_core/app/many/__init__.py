"""Changes of many jobs at once, and copies of jobs.

- ``changes``: changes all jobs of a queue that match a filter.
- ``copies``: enqueues copies of jobs, and replays jobs that died.
- ``copying``: makes the copies, a page of jobs at a time.
- ``forks``: enqueues forks, which are copies of durable jobs that run from a step on.
- ``origins``: finds the saved steps that a fork copies.
"""
