"""The mirror: copies a queue's outbox from Redis to the audit database, each event exactly once.

This room reads the outbox, checks its entries, folds their events into rows, detects what Redis has lost, and trims the
entries that SQL has. It does not check the log in SQL: :mod:`sql_audit.proof` does.

Read ``turn`` first: it moves one batch from Redis to SQL.

- ``projection/``: makes the rows of jobs and claims from events.

- ``turn``, ``service``: mirrors one batch; makes turns for all queues.
- ``redis_access``, ``source_registry``: the mirror's calls to Redis; the check that this Redis is the log's Redis.
- ``cursor``, ``reading``, ``intake``, ``field_types``, ``batch``: the mirror's position; reads the next batch; checks
  entries; the types of fields; the rows that a turn writes.
- ``epochs``, ``forks``, ``gaps``, ``losses``, ``possible_gaps``: the first entry of an epoch; the entry at which Redis'
  history left SQL's; breaks in the numbering; events that Redis forgot; events of a job that SQL may lack.
"""
