"""Unique jobs: at most one job at a time has a unique name.

- ``naming``: makes a job's unique name from its arguments.
- ``kinds``: Unique, Throttle, Debounce and Latest.
"""
