"""The audit database: its tables, and connections, transactions and statements on them.

It owns the schema, its migration, PostgreSQL's partitions, and how rows are written. It does not know what an event
means: that is :mod:`sql_audit.mirror`.

Read ``tables`` first, then ``database`` and ``statements``; ``schema`` joins tables, triggers and views.
"""
