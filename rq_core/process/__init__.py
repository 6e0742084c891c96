"""Operating-system processes around workers: the supervisor, a mirror and a relay beside the workers, and the health
check.

This package starts, signals, replaces and ends processes. :mod:`rq_core.worker` has the worker that runs inside a
process.

Read ``supervisor`` first.

- ``serve``: the entry of ``rq-core worker``.
- ``worker_process``: one worker process.
- ``supervisor``: keeps several processes running, and with ``--reload`` restarts a worker whose code changed.
- ``companion``: a process beside the workers: a mirror or a relay.
- ``claim_totals``: sums the counts of all worker processes.
- ``lease_guard``: extends leases for a worker whose heartbeat is overdue.
- ``health``: answers health checks.
- ``http_port``: an HTTP port that limits connections and times.
- ``process_exit``: ends a process, and finds out whether a process runs.
"""
