"""The projection: makes the rows of jobs and claims from events.

- ``fold``, ``job_changes``: updates the rows of jobs and claims with each event; sets the fields that an event sets.
- ``details``: makes the JSON in an event's row.
- ``rebuild``: makes the rows of jobs again from their events in the log.
"""
