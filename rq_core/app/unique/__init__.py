"""Unique jobs: of all jobs with one name, one is alive.

- ``naming``: how a job's name is made of its arguments.
- ``kinds``: Unique, Throttle, Debounce and Latest.
"""
