"""Metrics, alerts and causes for people and programs that watch queues, all derived from one shared reading.

- ``shared``: one reading of all queues for all watchers.
- ``table``: the list of metrics.
- ``collector``: the metrics' values, for prometheus_client.
- ``page``: the page ``/metrics`` of a worker.
- ``alerts``: conditions of alerts, with remedies.
- ``causes``: sentences about current problems.
"""
