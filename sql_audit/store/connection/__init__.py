"""Connections to the audit database, and what is said on them.

Read ``database`` first.

- ``database``, ``background``: connections, transactions, locks and many rows; a call on a thread of its own.
- ``statements``, ``copy``: the mirror's statements; rows in the form of PostgreSQL's COPY.
- ``database_identity``: whether a database is the original or a copy.
- ``driver_errors``: errors of drivers, and why a SQLite file cannot be written.
"""
