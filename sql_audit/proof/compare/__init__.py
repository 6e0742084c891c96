"""Compares SQL with Redis.

- ``drift``: the comparison.
- ``consistent_read``: reads Redis and SQL in the state of one moment.
- ``trusted_rows``: why the row of a job must not correct the job's state line.
- ``box_histories``: adds the events about steps and signals of durable jobs from SQL to the doctor's log.
- ``job_histories``: adds a queue's events from SQL to the doctor's log.
"""
