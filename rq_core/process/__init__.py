"""Operating-system processes around a worker: the supervisor, processes beside the workers, the health probe.

This room starts, signals, replaces and ends processes. The worker inside of a process is :mod:`rq_core.worker`.

Read ``supervisor`` first.

- ``serve``, ``worker_process``, ``supervisor``: the entry; one worker process; keeping several running, and
  noticing changed code.
- ``companion``: a process beside the workers: the mirror, or a relay.
- ``claim_totals``, ``lease_guard``: the counts of all processes; extending leases for a worker that cannot do so.
- ``health``, ``http_port``: answering health checks; an HTTP port that limits connections and times.
- ``process_exit``: ending a process, and whether a process runs.
"""
