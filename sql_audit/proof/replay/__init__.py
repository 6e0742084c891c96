"""Judging a queue's events one by one, in their order.

Read ``replay`` first.

- ``replay``, ``job_replay``, ``live_job``: numbers and epochs; jobs, their claims and names; a job that is alive.
- ``log_findings``: the violations, notes and losses found.
- ``holders``, ``held_names``: caps and rates; unique names and remembered ids.
- ``contradictions``: an event against those before, its fields, and who wrote it.
"""
