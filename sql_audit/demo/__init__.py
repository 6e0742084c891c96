"""The demo: a queue, its workers and its audit log on real files. Run it with ``scripts/demo`` or ``rq-core demo``.

Worker processes hash every file of a directory, one job per file. They also compress the larger files, at most two at
once. Half-way the demo kills a worker process.

At the end the demo compares three records: the files, the lines that the jobs wrote, and SQL. Each job must have
succeeded exactly once, and the cap must have held.

:mod:`sql_audit.demo.tasks` has the tasks as a user would write them. ``stage`` starts the processes and compares the
records. ``run`` is one run from the files to the report.
"""
