"""What user code sees: apps, tasks, handles, caps, retries, and the context of a running job.

It owns how a function becomes a task, and a call of it a job. It does not run jobs: that is :mod:`rq_core.worker`.

Read ``app`` first, then ``task``, ``options`` and ``handle``; ``caps``, ``declared`` and ``placing`` for how a job
gets its scopes.
"""
