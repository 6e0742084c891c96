"""The rows of jobs and claims, from events.

- ``fold``, ``job_changes``: the rows of jobs and claims after each event; the fields that an event sets.
- ``details``: the JSON of an event's row.
- ``rebuild``: jobs folded again from the log.
"""
