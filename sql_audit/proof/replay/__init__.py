"""Judging a queue's events one by one, in their order.

Read ``replay`` first.

- ``replay``, ``live_job``: the replay; a job that is alive.
- ``holders``, ``held_names``: caps and rates; unique names and remembered ids.
- ``contradictions``: an event against those before, its fields, and who wrote it.
"""
