"""Connections to the audit database, and the statements of the mirror.

Read ``database`` first.

- ``database``: connections, transactions, locks, and the writing of many rows.
- ``background``: runs a call on its own thread.
- ``statements``, ``copy``: the mirror's statements; rows in PostgreSQL's COPY format.
- ``database_identity``: checks whether a database is the original or a copy.
- ``driver_errors``: messages of drivers' errors, and the reasons why a SQLite file cannot be written.
"""
