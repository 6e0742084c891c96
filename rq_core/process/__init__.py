"""Operating-system processes around a worker: the supervisor, the mirror beside the workers, the health probe.

It owns starting, signalling, replacing and ending processes. What a worker does inside of one is
:mod:`rq_core.worker`.

Read ``supervisor`` first.
"""
