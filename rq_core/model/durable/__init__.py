"""Durable jobs. The handler of a durable job saves values under names, called steps. After a crash, the handler
continues after the last saved step.

- ``box_log``: computes the boxes of jobs from events of the log.
- ``boxes``: parses the members of a box, in which Redis has the steps of a durable job.
- ``children``: the ids of children, and the entries and the header that join a child to its parent.
- ``forks``: the header that names the origin of a fork, and the entries that a fork copies.
- ``tries``: decides which failures and lost workers of a durable job count.
"""
