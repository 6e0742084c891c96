"""Operating-system processes around a worker: the supervisor, processes beside the workers, the health probe.

This room starts, signals, replaces and ends processes. The worker inside of a process is :mod:`rq_core.worker`.

Read ``supervisor`` first.

- ``serve``: the entry of ``rq-core worker``.
- ``worker_process``: one worker process.
- ``supervisor``: keeps several processes running, and notices changed code.
- ``companion``: a process beside the workers: the mirror, or a relay.
- ``claim_totals``: the counts of all worker processes.
- ``lease_guard``: extends leases for a worker that cannot do so.
- ``health``: answers health checks.
- ``http_port``: an HTTP port that limits connections and times.
- ``process_exit``: ends a process, and says whether a process runs.
"""
