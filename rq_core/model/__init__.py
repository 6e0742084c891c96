"""The facts that all rooms share: states, events, keys, names, numbers, and how a job and a scope are written as text.

This room does no I/O and imports only :mod:`rq_core.errors`. It does not know how calls reach Redis.

Read ``table.machine`` first, then ``keys``, ``job``, ``limits.scopes`` and ``events``.

- ``table/``: states, events, transitions, and the fields of each.
- ``durable/``: what durable jobs have saved.
- ``limits/``: scopes, how much each takes, and the caps of a task as text.
- ``lib/``: texts, durations, log lines and checks that know nothing of jobs.

- ``settings``: a queue's settings.
- ``keys``: a queue's keys.
- ``ids``: ids of jobs, clients and workers.
- ``unique_names``: names of unique jobs.
- ``idempotency``: ids that outlive their jobs.
- ``job``: a new job on its way to a queue, and a claimed job on its way to a handler.
- ``headers``: a job's headers.
- ``result_encoding``: results as JSON after their digest.
- ``outcome``: how a job ended, for its producer.
- ``job_ends``: finds out from events how jobs ended.
- ``state_line``: reads and writes state lines.
- ``events``: decodes events, and folds them into a job's state.
- ``packed_job``: a job as a row of the table ``rqc_inbox`` has it.
- ``recurrence``: the times at which a schedule is due.
- ``schedule``: a schedule as Redis keeps it.
- ``plugins``: the entry points of other packages, and the answers of an audit log.
"""
