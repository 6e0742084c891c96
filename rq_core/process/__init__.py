"""Operating-system processes around a worker: the supervisor, the mirror beside the workers, the health probe.

It owns starting, signalling, replacing and ending processes. What a worker does inside of one is
:mod:`rq_core.worker`.

Read ``supervisor`` first.

- ``serve``, ``worker_process``, ``supervisor``: the entry; one worker process; keeping several running, and
  noticing changed code.
- ``mirror``: the mirror beside the workers.
- ``claim_totals``, ``lease_guard``: the counts of all processes; extending leases for a worker that cannot.
- ``health``, ``http_port``: answering health checks; a port with bounds.
- ``process_exit``: ending a process, and whether one runs.
"""
