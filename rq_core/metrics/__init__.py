"""What people and programs look at to see how the queues do: one shared look, and metrics made of it.

- ``shared``: one look at all queues for all watchers.
- ``table``: each metric.
- ``collector``, ``page``: its values, for prometheus_client; a worker's ``/metrics``.
- ``alerts``, ``causes``: when to alarm, and what to do then; what is wrong, in words.
"""
