"""Bytes to a server and back: one Redis, a Cluster, or what Sentinel calls the primary.

It owns sockets, pools, routing by slot, and the two clients that drive the plans of :mod:`rq_core.protocol`. It
decides nothing about jobs.

Read ``client`` first, then ``wire`` and ``pool``; ``cluster``, ``routing`` and ``sentinel`` when you need them.
"""
