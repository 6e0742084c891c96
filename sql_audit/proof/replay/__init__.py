"""Replays a queue's events one by one, in their order, and reports those that violate an invariant.

Read ``replay`` first.

- ``replay``, ``job_replay``, ``live_job``: replays numbers and epochs; replays jobs, their claims and names; a live
  job.
- ``log_findings``: collects the violations, notes and losses.
- ``holders``, ``held_names``: replays caps and rates; replays unique names and remembered ids.
- ``contradictions``: compares an event with the earlier events of its job, and checks its fields.
"""
