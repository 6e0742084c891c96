"""The schema: tables, triggers and views, on PostgreSQL and SQLite.

Read ``tables`` first.

- ``tables``, ``triggers``, ``views``: tables with their constraints and indexes; append-only tables; views for people.
- ``ddl``: creating all of it.
- ``duration_classes``: claims by how long they took, for an index.
"""
