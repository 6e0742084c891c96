"""Metrics, alerts and causes for people and programs that watch queues, all derived from one shared reading.

- ``shared``: one reading of all queues for all watchers.
- ``table``: the list of metrics.
- ``collector``, ``page``: the metrics' values, for prometheus_client; a worker's ``/metrics``.
- ``alerts``, ``causes``: conditions of alerts, with remedies; sentences about current problems.
"""
