"""The mirror: copies a queue's outbox from Redis to the audit database, each event exactly once.

The mirror reads the outbox, checks the entries, and makes rows of jobs and claims from their events. It detects what
Redis has lost, and trims the entries that SQL has. :mod:`sql_audit.proof` checks the log in SQL; this room does not.

Read ``turn`` first: it moves one batch from Redis to SQL.

- ``projection/``: makes the rows of jobs and claims from events.

- ``turn``, ``service``: mirrors one batch; makes turns for all queues.
- ``redis_access``, ``source_registry``: the mirror's calls to Redis; the check that this Redis is the log's Redis.
- ``cursor``, ``reading``: the mirror's position in the outbox; reads the next batch.
- ``intake``, ``field_types``: checks each entry; checks the types of fields.
- ``batch``: the rows that a turn writes.
- ``epochs``, ``gaps``: the first entry of an epoch; breaks in the numbering of entries.
- ``forks``, ``losses``: finds the last entry that Redis and SQL share; changes SQL for the events that Redis forgot.
- ``possible_gaps``: finds jobs whose events may be missing in SQL.
"""
