"""What every room agrees on: states, events, keys, names, numbers, and how a job and a scope are written as text.

It does no I/O and imports only :mod:`rq_core.errors`. It does not know how anything reaches Redis.

Read ``machine`` first, then ``keys``, ``job``, ``scopes`` and ``events``.

- ``machine``, ``event_fields``, ``fields``, ``effects``, ``reasons``: the table: states, events and transitions; fields
  of events; fields of jobs; what each event does to a job; reasons of events.
- ``settings``, ``keys``, ``ids``: a queue's numbers; its keys; ids of jobs.
- ``names``, ``remembered``: names of unique jobs; ids that outlive their jobs.
- ``job``, ``headers``, ``values``, ``outcome``, ``ends``: a job on its way; its headers; results of handlers as they
  travel; how a job ended; the same, by its events.
- ``scopes``, ``limits``, ``policy``: what counts jobs; how many it takes; caps of a task as text.
- ``state_line``, ``events``: reading and writing a state line; the one reader of events.
- ``plugins``: what other packages add by entry points, and what an audit log answers.
- ``checks``, ``durations``, ``lazily``, ``logs``, ``url``: checks of what users give; seconds in Python, ms in Redis
  and SQL; cached properties; log lines; URLs of Redis.
- ``text``: text from elsewhere, made fit to show, and a number with its noun.
"""
