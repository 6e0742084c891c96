"""Metrics, alerts and causes for operators, and for programs that watch queues. A cause is a sentence about a current
problem.

All are derived from one shared reading of the queues.

- ``shared``: one reading of all queues for all watchers.
- ``table``: the list of metrics.
- ``collector``: the metrics' values, for prometheus_client.
- ``page``: the page ``/metrics`` of a worker.
- ``alerts``: conditions of alerts, with remedies.
- ``causes``: makes sentences about current problems.
"""
