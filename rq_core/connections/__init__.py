"""Bytes to a server and back: one Redis, a Cluster, or the primary that Sentinel names.

It owns sockets, pools, routing by slot, and the two clients that drive the plans of :mod:`rq_core.protocol`. It
decides nothing about jobs.

Read ``client`` first, then ``transport`` and ``pool``.

- ``client``, ``async_client``, ``shared_enqueues``: the clients that drive the plans; enqueues that share a call.
- ``transport``, ``pool``: sending commands and reading replies; idle connections.
- ``connection``, ``async_connection``: one connection, parsing replies, and the internals of redis-py in use.
- ``connection_options``, ``open``, ``tls_probe``: what a URL means; opening it; one error where TLS meets a plain port.
- ``wait_thread``, ``end_subscriptions``: the thread that looks for all waits; connections with subscriptions to ends of
  jobs.
- ``cluster``, ``routing``, ``sentinel``: a cluster's connections; which node has a key; who the primary is.
- ``redis_errors``: which errors of redis-py mean what.
"""
