"""Handlers: the context of a running job, dependencies, ``around`` functions, retries, hooks, and redaction of errors.

- ``context``: the running job, for its handler.
- ``showing``: the progress and the chunks that a handler shows, until the worker takes them.
- ``log_context``: adds the running job to log records.
- ``depends``: declares dependencies, and finds the dependencies of a function.
- ``handler_setup``: enters and leaves dependencies and the app's ``around`` functions.
- ``outgoing``: functions that add headers to jobs before they are sent.
- ``process_scope``: dependencies that live as long as the process.
- ``pausing``: the error by which a handler pauses the jobs of a scope.
- ``retry``: retry policies.
- ``dead_hooks``: hooks for dead jobs.
- ``redaction``: keeps secrets out of logs and errors.
- ``json_problems``: says why a value has no JSON form, and where in the value.
- ``result_types``: converts a handler's result to JSON and back, by its annotation.
"""
