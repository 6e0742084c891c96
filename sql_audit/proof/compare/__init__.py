"""Compares SQL with Redis.

- ``drift``: the comparison.
- ``consistent_read``: reads Redis and SQL in the state of one moment.
- ``trusted_rows``: why the row of a job in SQL must not correct the job's state in Redis.
- ``box_histories``: adds the steps and signals of durable jobs, from SQL, to the history that ``rq-core doctor`` uses.
- ``job_histories``: adds a queue's other events from SQL to this history.
"""
