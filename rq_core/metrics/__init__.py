"""Metrics, alerts and causes for people and programs that watch queues, all made of one shared look.

- ``shared``: one look at all queues for all watchers.
- ``table``: each metric.
- ``collector``, ``page``: its values, for prometheus_client; a worker's ``/metrics``.
- ``alerts``, ``causes``: when to alarm, and what to do then; what is wrong, in words.
"""
