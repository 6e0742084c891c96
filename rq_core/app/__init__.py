"""The classes that user code imports: apps, tasks, handles, caps, retry policies, and the context of a running job.

This package turns functions into tasks, and calls of tasks into jobs. :mod:`rq_core.worker` runs jobs.

Read ``app`` first, then ``task``, ``options`` and ``handles.handle``.

- ``batches/``: batch handlers, which run several jobs in one call.
- ``durable/``: steps of durable jobs, which are not run again after a crash.
- ``flows/``: flows, which are declared graphs of calls, and the built-in task that runs them.
- ``inbox/``: enqueues jobs inside a transaction of the user's database.
- ``limits/``: caps, rates and fairness, as tasks declare them, and the choice of a job's lane (its waiting line).
- ``unique/``: Unique, Throttle, Debounce and Latest.
- ``handlers/``: a handler's context and dependencies, ``around`` functions, retries, hooks, and redaction of errors.
- ``many/``: changes of all jobs that match a filter, and copies of jobs.
- ``handles/``: handles of enqueued jobs, and the wait for the jobs' ends.

- ``app``: the app.
- ``queue_producer``: the app's methods for whole queues.
- ``producer``: the part of the app that tasks use.
- ``clients``: an app's connections.
- ``waking``: wakes a relay of an inbox.
- ``task``: tasks.
- ``decorators``: the types of ``app.task(…)``, for type checkers.
- ``registration``: turns a function into a task.
- ``options``: the options of an enqueue.
- ``unknown_options``: the error for an unknown option.
- ``schedules``: declares schedules, and changes them.
- ``untyped_enqueue``: enqueues by a task's name, without its code.
- ``arguments``: checks arguments, and converts them to JSON and back.
- ``hints``: checks whether a value stays the same when it is converted to JSON and back.
- ``loading``: finds an app by ``module:app``.
- ``fork_safety``: makes a fork wait while another thread prepares an app's first use.
"""
