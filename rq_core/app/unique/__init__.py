"""Unique jobs: of all jobs with the same unique name, at most one job is alive.

- ``naming``: makes a job's name from its arguments.
- ``kinds``: Unique, Throttle, Debounce and Latest.
"""
