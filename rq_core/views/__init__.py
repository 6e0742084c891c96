"""What people and programs are shown of queues, jobs, names, workers and scopes: no I/O, and nothing is printed here.

:mod:`rq_core.views.lists` has each list as a row of one table. The command line prints these rows, and a web page may
show them.
"""
