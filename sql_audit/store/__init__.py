"""The audit database: its tables, and connections, transactions and statements on them.

It owns the schema, its migration, PostgreSQL's partitions, and how rows are written. It does not know what an event
means: that is :mod:`sql_audit.mirror`.

Read ``tables`` first, then ``database`` and ``statements``.

- ``tables``, ``triggers``, ``views``, ``schema``, ``migrate``, ``partitions``: the schema, its migration, and the
  months of PostgreSQL's ``job_event``.
- ``database``, ``background``, ``statements``, ``copy``: connections, locks and many rows; a call on a thread; the
  mirror's statements; rows as COPY has them.
- ``rows``, ``minutes``, ``spans``, ``chain``: rows of jobs and claims; claims by the minute, and by duration; hashes.
- ``mirrored``, ``place``, ``gaps``, ``orphans``: which queues a log has, and where from; whether a database is a copy;
  events that SQL never got, and the jobs that ended or were lost there; events that Redis forgot.
- ``grants``, ``text``, ``driver_errors``: rights of roles; text that both databases can store; errors of drivers,
  also why a SQLite file cannot be written.
"""
