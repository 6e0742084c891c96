"""The definitions that all packages of rq-core share: states, events, Redis keys, names and limits, and how a job and a
scope are written as text.

This package does no I/O, sends no calls to Redis, and imports only :mod:`rq_core.errors` and :mod:`rq_core.masking`.

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
- ``job``: a job that a producer enqueues, and a job that a worker has claimed.
- ``headers``: a job's headers.
- ``result_encoding``: the text of a result in Redis: a digest, then JSON.
- ``outcome``: how a job ended, for its producer.
- ``job_ends``: finds out from events how jobs ended.
- ``state_line``: reads and writes state lines, in which Redis has the states of jobs.
- ``events``: decodes events, and computes a job's state from its events.
- ``packed_job``: the form of a job in a row of the table ``rqc_inbox``.
- ``recurrence``: the times at which a schedule is due.
- ``schedule``: the form of a schedule in Redis.
- ``plugins``: finds functions of other packages by entry points, and defines what an audit log must answer.
"""
