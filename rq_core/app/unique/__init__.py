"""Unique jobs: at most one job holds a unique name at a time.

- ``naming``: makes a job's unique name from its arguments.
- ``kinds``: Unique, Throttle, Debounce and Latest.
"""
