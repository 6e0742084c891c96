"""The rows of jobs and claims, from events.

- ``fold``: where events leave each job and each claim.
- ``details``: the JSON of an event's row.
- ``rebuild``: jobs folded again from the log.
"""
