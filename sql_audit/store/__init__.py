"""The audit database: its tables, connections, transactions and statements.

This room has the schema, its migrations, PostgreSQL's partitions, and the code that writes rows. It does not interpret
events: :mod:`sql_audit.mirror` does.

Read ``schema.tables`` first, then ``connection.database`` and ``connection.statements``.

- ``schema/``: tables, triggers and views.
- ``connection/``: connections, transactions, statements, and errors of drivers.

- ``migrate``, ``grants``: schema versions; the rights of PostgreSQL's roles.
- ``partitions``: the monthly partitions of ``job_event`` on PostgreSQL.
- ``job_rows``, ``claim_minutes``: rows of jobs and claims in memory; counts of claims by the minute.
- ``chain``: the hashes that chain each batch to the preceding batch.
- ``log_queues``: the queues of a log, and the Redis from which each comes.
- ``gaps``, ``orphans``: events that SQL never had; events that Redis forgot.
- ``storable_text``: text that both databases can store.
"""
