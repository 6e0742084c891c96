"""The schema of the audit log on PostgreSQL and SQLite: tables, triggers and views.

Read ``tables`` first.

- ``tables``: tables with their constraints and indexes.
- ``triggers``: triggers that make tables append-only.
- ``views``, ``pause_views``: views for people; the pauses of scopes.
- ``ddl``: creates the whole schema.
- ``duration_classes``: classes of claims by their duration, for indexes.
"""
