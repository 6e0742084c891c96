"""The names that user code sees: apps, tasks, handles, caps, retries, and the context of a running job.

This room turns functions into tasks, and calls of tasks into jobs. :mod:`rq_core.worker` runs jobs.

Read ``app`` first, then ``task``, ``options`` and ``handles.handle``.

- ``inbox/``: enqueueing inside a transaction of the user's database.
- ``limits/``: caps, rates and fairness, as tasks declare them, and a job's lane.
- ``unique/``: Unique, Throttle, Debounce and Latest.
- ``handlers/``: a handler's context, its dependencies and arounds, retries, hooks, and redaction of errors.
- ``handles/``: handles of the jobs that a producer enqueued, and waiting for them.

- ``app``, ``queue_producer``, ``producer``: the app; its methods for whole queues; the part of the app that tasks use.
- ``clients``, ``waking``: an app's connections; waking a relay of an inbox.
- ``task``, ``registration``, ``options``, ``unknown_options``: tasks; how a function becomes one; its options; the
  error for an unknown option.
- ``schedules``: declaring schedules, and changing them.
- ``untyped_enqueue``: enqueueing by a task's name, without its code.
- ``arguments``, ``hints``: checking arguments; whether annotated values survive JSON.
- ``loading``: finding an app by ``module:app``, and a task by module and name.
- ``fork_safety``: makes a fork wait while another thread prepares an app's first use.
"""
