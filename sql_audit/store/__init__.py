"""The audit database: its tables, connections, transactions and statements.

This room has the schema, its migrations, PostgreSQL's partitions, and the writing of rows. It does not interpret
events: :mod:`sql_audit.mirror` does.

Read ``schema.tables`` first, then ``connection.database`` and ``connection.statements``.

- ``schema/``: tables, triggers and views.
- ``connection/``: connections, transactions, statements, and errors of drivers.

- ``migrate``, ``partitions``, ``grants``: schema versions; the months of PostgreSQL's ``job_event``; rights of roles.
- ``job_rows``, ``claim_minutes``: rows of jobs and claims while events are folded; counts of claims by the minute.
- ``chain``: the hashes that tie each batch to the batch before.
- ``log_queues``, ``gaps``, ``orphans``: the queues of a log, and their sources; events that SQL never had; events that
  Redis forgot.
- ``storable_text``: text that both databases can store.
"""
