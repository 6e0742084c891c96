"""What user code sees: apps, tasks, handles, caps, retries, and the context of a running job.

It owns how a function becomes a task, and a call of it a job. It does not run jobs: that is :mod:`rq_core.worker`.

Read ``app`` first, then ``task``, ``options`` and ``handle``.

- ``app``, ``clients``, ``producer``: the app; its connections; what a task needs of its app.
- ``task``, ``registration``, ``options``, ``unknown_options``: tasks; how a function becomes one; its options; advice
  on options of other queues.
- ``arguments``, ``hints``: checking arguments; what their annotations say of JSON.
- ``handle``, ``accepted``, ``many``, ``by_name``, ``edit``: handles of jobs; of many at once; tasks whose code is
  elsewhere; changing a waiting job.
- ``awaiting``, ``log_reader``, ``returned``: how handles wait, and read the log; results of handlers.
- ``caps``, ``declared``, ``placing``: Cap and Rate; the declarations by queue; a job's lane.
- ``naming``, ``unique``: a job's unique name; the options that need one.
- ``context``, ``log_context``, ``retry``, ``dead_hooks``, ``redaction``: the running job, for its handler and its log
  lines; retry policies; hooks for dead jobs; what errors and logs must not show.
- ``depends``, ``surroundings``, ``resources``: dependencies; these and the arounds of one app, entering and leaving
  them; values that live as long as the process.
- ``loading``: finding an app by ``module:app``, and a task by module and name.
- ``first_use``: preparing on first use; a fork waits for what is being prepared.
"""
