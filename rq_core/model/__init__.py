"""The facts that all rooms share: states, events, keys, names and numbers. Also how a job and a scope are written as
text.

This room does no I/O and imports only :mod:`rq_core.errors` and :mod:`rq_core.masking`. It does not know how calls
reach Redis.

Read ``table.machine`` first, then ``keys``, ``job``, ``limits.scopes`` and ``events``.

- ``table/``: states, events, transitions, and their fields.
- ``durable/``: the steps that durable jobs have saved.
- ``showing/``: the progress of jobs, and the chunks of their streams.
- ``filters/``: conditions on jobs, for changes of many jobs.
- ``limits/``: scopes, the limit of each scope, and the caps of a task as text.
- ``lib/``: texts, durations, log lines and checks that do not depend on jobs.

- ``settings``: a queue's settings.
- ``keys``: a queue's keys.
- ``ids``: ids of jobs, clients and workers.
- ``unique_names``: names of unique jobs.
- ``idempotency``: ids that are remembered after their jobs have ended.
- ``job``: a new job on its way to a queue, and a claimed job on its way to a handler.
- ``headers``: a job's headers.
- ``result_encoding``: the text of a result in Redis: a digest, then JSON.
- ``outcome``: how a job ended, for its producer.
- ``job_ends``: finds out from events how jobs ended.
- ``state_line``: reads and writes state lines.
- ``events``: decodes events, and computes a job's state from its events.
- ``packed_job``: the form of a job in a row of the table ``rqc_inbox``.
- ``recurrence``: the times at which a schedule is due.
- ``schedule``: the form of a schedule in Redis.
- ``plugins``: finds functions of other packages by entry points, and defines what an audit log must answer.
"""
