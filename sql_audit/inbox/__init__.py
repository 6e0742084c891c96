"""The inbox in a user's database: the tables into which programs insert jobs, inside their own transactions.

This room does not write the log, and needs no audit database: :mod:`sql_audit.mirror` is beside it.

- ``schema``: the tables, and their creation.
- ``looking``: finds jobs that are still in an inbox.
- ``watching``: reads the state of an inbox for metrics and causes.
- ``database``: connections to the user's database.
- ``statements``, ``session``: the relay's statements; its connection and transactions.
- ``rows``: makes jobs from rows.
- ``relay``, ``sending``: one turn for a queue; the calls of its batch.
- ``service``: turns for all queues.
- ``place``: notices a copied database.
- ``rights``, ``doctor``: the rights of roles of PostgreSQL; what is wrong with an inbox, for ``rq-core doctor``.
- ``admin``, ``verify``: shows rows to an operator, and retries or drops parked rows; compares an inbox with the log.
"""
