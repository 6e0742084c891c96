"""From a queue's outbox in Redis to the audit database, each event exactly once.

It owns reading the outbox, checking entries, folding events into rows, noticing what Redis has lost, and trimming
what SQL has. It proves nothing: that is :mod:`sql_audit.proof`.

Read ``turn`` first: one batch, in one direction.

- ``projection/``: the rows of jobs and claims, from events.

- ``turn``, ``service``: one batch; turns for all queues.
- ``redis_access``, ``source_registry``: what the mirror needs of Redis; whether it is the Redis of the log.
- ``cursor``, ``reading``, ``intake``, ``field_types``, ``batch``: the position; reading the next batch; checking
  entries; types of fields; what a turn writes.
- ``epochs``, ``forks``, ``gaps``, ``losses``, ``possible_gaps``: the beginning of an epoch; where Redis' history left
  SQL's; breaks in the numbering; what Redis forgot; what SQL may have missed of a job.
"""
