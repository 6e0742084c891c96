"""Unique jobs: of all jobs with one name, at most one is alive.

- ``naming``: makes a job's name from its arguments.
- ``kinds``: Unique, Throttle, Debounce and Latest.
"""
