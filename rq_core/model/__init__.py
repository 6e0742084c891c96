"""What every room agrees on: states, events, keys, names, numbers, and how a job and a scope are written as text.

It does no I/O and imports only :mod:`rq_core.errors`. It does not know how anything reaches Redis.

Read ``machine`` first (states, events, transitions), then ``keys`` (where a queue's data stands in Redis), ``job``,
``scopes`` and ``events``.
"""
