"""The facts that all rooms share: states, events, keys, names, numbers, and how a job and a scope are written as text.

It does no I/O and imports only :mod:`rq_core.errors`. It does not know how anything reaches Redis.

Read ``table.machine`` first, then ``keys``, ``job``, ``limits.scopes`` and ``events``.

- ``table/``: states, events, transitions, and the fields of each.
- ``durable/``: what durable jobs have saved.
- ``limits/``: scopes, how much each takes, and the caps of a task as text.
- ``lib/``: texts, durations, log lines and checks that know nothing of jobs.

- ``settings``, ``keys``, ``ids``: a queue's settings; its keys; ids of jobs, clients and workers.
- ``unique_names``, ``idempotency``: names of unique jobs; ids that outlive their jobs.
- ``job``, ``headers``, ``result_encoding``: a job on its way; its headers; results of handlers as JSON behind a digest.
- ``outcome``, ``job_ends``: how a job ended, for its producer; the same, from its events.
- ``state_line``, ``events``: reading and writing a state line; decoding and folding events.
- ``packed_job``: a job as a row of the table ``rqc_inbox`` has it.
- ``recurrence``, ``schedule``: when a schedule is due; a schedule as Redis keeps it.
- ``plugins``: the entry points of other packages, and the answers of an audit log.
"""
