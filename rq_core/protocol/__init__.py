"""Every call to a queue, as a plan without I/O.

It owns what is sent, in which order, what an answer means, and what happens when an answer is lost. It does not own
connections: a plan yields commands, and a client sends them.

Read ``plan`` first, then ``operations`` and one family, ``claims`` or ``enqueue``.

- ``plan``, ``delivery``, ``asking``: the words of a plan; slots, re-sending and the handshake; plain commands, alone or
  several in one step, and their errors.
- ``operations``: the families, joined.
- ``enqueue``: enqueues, and that of one job without a plan.
- ``claims``, ``admin``, ``caps``, ``unique``, ``audit``: claim, turn and settlements; cancel, edit, requeue, prune,
  configure and the deletion of a queue; limits; names; mirror, restore and repair.
- ``reads``, ``steps``: all reads; carrying out one, or those of many queues in the same round trips, and reading state
  lines.
- ``overview``, ``scope_reads``, ``job_reads``, ``whole_queue``: a bounded look at a queue; scopes, exactly; jobs, page
  by page; all of a queue, for the doctor.
- ``endings``, ``awaited``: whether jobs have ended; when to look.
- ``presence``: the list of workers.
- ``prepare``, ``server_check``, ``usable``: loading functions; whether a server is fit; whether a client can use a
  queue.
- ``access``: rights of roles, and errors about missing rights.
"""
