"""Describes lists of queues, jobs, unique names, workers, schedules and scopes (groups of jobs with a common limit),
for people and programs.

This package does no I/O and prints nothing. :mod:`rq_core.views.lists` describes all lists in one table. The command
line prints the lists, and the web page shows some of them.

- ``table``: the type that describes a list.
- ``lists``: the description of each list.
- ``queues``, ``jobs``, ``scopes``, ``schedules``: the queries, cells and documents of these lists.
- ``job``: the view of one job.
- ``shown``: the view of the progress and the stream of a job.
- ``steps``: the view of a durable job's steps.
- ``text``: times and durations in words.
"""
