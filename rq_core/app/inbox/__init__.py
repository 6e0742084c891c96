"""Enqueueing inside a transaction of the user's database: each job is a row that a relay hands over after the commit.

Only modules of libraries that the program has imported already are used: a connection's own type says which library it
is of.

Read ``within`` first, then ``rows``.

- ``within``: the objects that ``task.within(connection)`` and ``app.within(connection)`` return.
- ``rows``: rows of jobs, and the statements for them.
- ``doors``, ``drivers``, ``sqlalchemy_doors``, ``django_door``: one way to run statements on connections of all
  libraries; the drivers' own connections; those of SQLAlchemy; those of Django.
"""
