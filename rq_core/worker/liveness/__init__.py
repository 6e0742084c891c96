"""Shows that a worker is alive, and measures how late its event loop is.

- ``heartbeat``: extends leases.
- ``lease_table``: a table of the worker's leases, in memory that its supervisor can read.
- ``presence``: the worker's row in the list of workers.
- ``loop_lag``: measures how late the event loop is.
"""
