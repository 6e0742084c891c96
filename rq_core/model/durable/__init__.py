"""Durable jobs. The handler of a durable job saves values under names, called steps. After a crash, the handler
continues after the last saved step.

- ``box_log``: the boxes according to events of the log.
- ``boxes``: parses the entries in which Redis has the steps of durable jobs.
- ``children``: the ids of children, and the entries and the header that join a child to its parent.
- ``tries``: which failures and losses count.
"""
