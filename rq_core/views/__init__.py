"""Lists of queues, jobs, names, workers and scopes for people and programs: no I/O, and nothing is printed here.

:mod:`rq_core.views.lists` has each list as a row of one table. The command line prints these rows, and a web page may
show them.

- ``table``, ``lists``: the type of a row; each list as a row.
- ``queues``, ``jobs``, ``scopes``: the questions, cells and documents of the lists.
- ``job``, ``text``: one job; times and durations in words.
"""
