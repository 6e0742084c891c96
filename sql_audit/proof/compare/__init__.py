"""SQL beside Redis.

- ``drift``: the comparison.
- ``consistent_read``: both as they were at one moment.
- ``job_histories``: what SQL has of a queue, for the doctor.
"""
