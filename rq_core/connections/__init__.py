"""Connections to a server: to one Redis, to a Cluster, or to the primary that Sentinel names.

This package owns sockets, pools, routing by cluster slot, and the two clients. A client carries out the plans of
:mod:`rq_core.protocol`: generators that yield commands and pauses. This package makes no decision about jobs.

Read ``client`` first, then ``transport`` and ``pool``.

- ``client``: the client that carries out plans.
- ``async_client``: the client for an event loop.
- ``shared_enqueues``: joins simultaneous enqueues of an event loop into one call.
- ``transport``: sends commands and returns replies.
- ``pool``: idle connections.
- ``connection``: one connection of a thread, and the internals of redis-py that this package uses.
- ``async_connection``: one connection of an event loop.
- ``connection_options``: converts a URL to the options of connections.
- ``open``: opens a URL.
- ``tls_probe``: finds out whether a port and the URL disagree about TLS.
- ``wait_thread``: the thread that waits for the ends of jobs, for the whole process.
- ``end_subscriptions``: subscriptions to the ends of jobs.
- ``cluster``: connections to the nodes of a cluster.
- ``routing``: finds the node that has a key.
- ``sentinel``: finds the server that is the primary.
- ``redis_errors``: the meanings of redis-py's errors.
"""
