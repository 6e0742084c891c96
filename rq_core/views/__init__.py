"""Lists of queues, jobs, names, workers and scopes for people and programs: no I/O, and nothing is printed here.

:mod:`rq_core.views.lists` describes all lists in one table. The command line prints the lists, and a web page may show
them.

- ``table``: the type that describes a list.
- ``lists``: the description of each list.
- ``queues``, ``jobs``, ``scopes``, ``schedules``: the queries, cells and documents of the lists of these things.
- ``job``: the view of one job.
- ``text``: times and durations in words.
"""
