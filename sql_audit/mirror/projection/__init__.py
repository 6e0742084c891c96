"""The projection: makes the rows of jobs and claims from events.

- ``fold``: the rows of jobs and claims after each event.
- ``job_changes``: the changes of a job's fields by an event.
- ``details``: makes the JSON in an event's row.
- ``rebuild``: makes the rows of jobs again from their events in the log.
"""
