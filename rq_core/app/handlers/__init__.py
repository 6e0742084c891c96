"""Handlers: the context of a running job, dependencies and arounds, retries, hooks, and redaction of errors.

- ``context``, ``log_context``: the running job, for its handler; the job's id in log records.
- ``depends``, ``handler_setup``, ``process_scope``: dependencies; entering and leaving them and the app's ``around``
  functions; dependencies that live as long as the process.
- ``retry``, ``dead_hooks``: retry policies; hooks for dead jobs.
- ``redaction``: keeping secrets out of logs and errors.
- ``result_types``: a handler's result as JSON, by its annotation.
"""
