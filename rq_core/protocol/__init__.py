"""All calls to a queue. Each call is a plan: a generator that yields commands and does no I/O itself.

A plan decides which commands are sent, in which order, and what each answer means. It also decides what follows if an
answer is lost. A client sends the commands.

Read ``engine.plan`` first, then ``operations`` and one family of calls: ``calls.claims`` or ``calls.enqueue``.

- ``engine/``: plans, re-sending, and whether a server and a queue can be used.
- ``calls/``: calls that change a queue, a family in each module.
- ``reads/``: calls that only read.

- ``operations``: all families together.
"""
