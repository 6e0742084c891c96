"""Compares SQL with Redis.

- ``drift``: the comparison.
- ``consistent_read``: reads Redis and SQL in the state of one moment.
- ``box_histories``: adds SQL's history of the boxes of durable jobs to the doctor's log.
- ``job_histories``: adds SQL's history of a queue to the doctor's log.
"""
