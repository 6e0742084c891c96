"""Bytes to a server and back: one Redis, a Cluster, or the primary that Sentinel names.

This room owns sockets, pools, routing by slot, and the two clients that carry out the plans of :mod:`rq_core.protocol`.
It makes no decision about jobs.

Read ``client`` first, then ``transport`` and ``pool``.

- ``client``, ``async_client``, ``shared_enqueues``: the clients that carry out plans; enqueues that share a call.
- ``transport``, ``pool``: sending commands and reading replies; idle connections.
- ``connection``, ``async_connection``: one connection, parsing replies, and the internals of redis-py in use.
- ``connection_options``, ``open``, ``tls_probe``: options from a URL; opening a URL; an error for TLS on a plain port.
- ``wait_thread``, ``end_subscriptions``: the thread that checks the jobs of all waits; subscriptions to the ends of
  jobs.
- ``cluster``, ``routing``, ``sentinel``: a cluster's connections; which node has a key; which server is the primary.
- ``redis_errors``: the meanings of redis-py's errors.
"""
