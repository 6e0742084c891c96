"""Enqueues jobs inside a transaction of the user's database. Each job is first a row of an inbox table. After the
commit, a process called the relay hands the row over to Redis.

This package imports a database library only if the program has imported it already. The class of a connection shows to
which library the connection belongs.

Read ``within`` first, then ``rows``.

- ``within``: the objects that ``task.within(connection)`` and ``app.within(connection)`` return.
- ``rows``: rows of jobs, and the SQL statements for them.
- ``doors``: the interface by which this package runs statements on connections of all libraries.
- ``drivers``: connections of psycopg, asyncpg and sqlite3.
- ``sqlalchemy_doors``: connections and sessions of SQLAlchemy.
- ``django_door``: connections of Django.
"""
