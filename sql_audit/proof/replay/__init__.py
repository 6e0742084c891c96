"""Replays a queue's events one by one, in their order, and reports those that violate an invariant.

Read ``replay`` first.

- ``replay``: checks the numbering and the epochs.
- ``job_replay``: replays jobs, their claims and their names.
- ``live_job``: the state of one live job.
- ``log_findings``: collects the violations, notes and losses.
- ``holders``, ``held_names``: replays caps and rates; replays unique names and remembered ids.
- ``settled_costs``: replays the real costs that jobs report, and the scopes that jobs pause.
- ``breakers``: replays the scopes that pause when a service fails.
- ``saved_steps``: checks the steps of durable jobs.
- ``mail``, ``parked_jobs``: the signals and waits of a durable job; checks the events about them.
- ``schedule_ticks``: replays the instants of schedules.
- ``contradictions``: compares an event with the earlier events of its job, and checks its fields.
- ``plain_details``: recognizes most details without a fault, which need no check.
"""
