"""The inbox in a user's database: tables into which programs insert jobs, inside their own transactions.

This room needs no audit database and does not write the audit log; :mod:`sql_audit.mirror` does.

- ``schema``: the tables, and their creation.
- ``looking``: finds jobs that are still in an inbox.
- ``watching``: reads the state of an inbox for metrics and for the causes of waits.
- ``database``: connections to the user's database.
- ``statements``, ``session``: the relay's statements; its connection and transactions.
- ``rows``: makes jobs from rows.
- ``relay``: a relay's turn for one queue.
- ``sending``: the calls to Redis for one batch.
- ``service``: turns for all queues.
- ``place``: notices a copied database.
- ``rights``: the rights of PostgreSQL's roles.
- ``doctor``: finds what is wrong with an inbox, for ``rq-core doctor``.
- ``admin``: shows rows to an operator, and retries or drops parked rows.
- ``verify``: compares an inbox with the log.
"""
