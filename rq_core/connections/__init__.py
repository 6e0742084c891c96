"""Bytes to a server and back: one Redis, a Cluster, or what Sentinel calls the primary.

It owns sockets, pools, routing by slot, and the two clients that drive the plans of :mod:`rq_core.protocol`. It
decides nothing about jobs.

Read ``client`` first, then ``wire`` and ``pool``.

- ``client``, ``async_client``, ``shared_enqueues``: the clients that drive the plans; enqueues that share a call.
- ``wire``, ``pool``: sending commands and reading replies; idle connections.
- ``line``, ``async_line``, ``replies``, ``borrowed``: one connection; parsing replies; internals of redis-py.
- ``source``, ``open``, ``other_protocol``: what a URL means; opening it; one error where TLS meets a plain port.
- ``waiter``, ``listener``, ``hearing``: the thread that looks for all waits; subscriptions to ends of jobs; a
  connection that receives messages.
- ``cluster``, ``routing``, ``slot_map``: a cluster's connections; which node has a key; which node has a slot.
- ``sentinel``, ``sentinels``: who the primary is; asking the Sentinels, once a second.
- ``redis_errors``: which errors of redis-py mean what.
"""
