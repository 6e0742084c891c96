"""The audit database: its tables, and connections, transactions and statements on them.

It owns the schema, its migration, PostgreSQL's partitions, and how rows are written. It does not know what an event
means: that is :mod:`sql_audit.mirror`.

Read ``schema.tables`` first, then ``connection.database`` and ``connection.statements``.

- ``schema/``: tables, triggers and views.
- ``connection/``: connections, transactions, statements, and errors of drivers.

- ``migrate``, ``partitions``, ``grants``: schema versions; the months of PostgreSQL's ``job_event``; rights of roles.
- ``job_rows``, ``claim_minutes``: rows of jobs and claims while they are folded; claims by the minute.
- ``chain``: the hashes that tie each batch to the one before.
- ``log_queues``, ``gaps``, ``orphans``: which queues a log has, and where from; events that SQL never got; events that
  Redis forgot.
- ``storable_text``: text that both databases can store.
"""
