"""Every call to a queue, as a plan without I/O.

This room decides which commands are sent, in which order, what an answer means, and what follows if an answer is lost.
It has no connections: a plan yields commands, and a client sends them.

Read ``engine.plan`` first, then ``operations`` and one family, ``calls.claims`` or ``calls.enqueue``.

- ``engine/``: plans, re-sending, and whether a server and a queue can be used.
- ``calls/``: calls that change a queue, a family in each module.
- ``reads/``: calls that only read.

- ``operations``: all families together.
"""
