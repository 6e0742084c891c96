"""Enqueueing inside a transaction of the user's database: each job is a row that a relay hands over after the commit.

This package imports a database library only if the program has imported it already: the class of a connection says to
which library the connection belongs.

Read ``within`` first, then ``rows``.

- ``within``: the objects that ``task.within(connection)`` and ``app.within(connection)`` return.
- ``rows``: rows of jobs, and the statements for them.
- ``doors``: one way to run statements on the connections of all libraries.
- ``drivers``: connections of psycopg, asyncpg and sqlite3.
- ``sqlalchemy_doors``: connections and sessions of SQLAlchemy.
- ``django_door``: connections of Django.
"""
