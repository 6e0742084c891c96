"""Every call to a queue, as a plan without I/O.

It owns what is sent, in which order, what an answer means, and what happens when an answer is lost. It does not own
connections: a plan yields commands, and a client sends them.

Read ``plan`` first (the words of a plan), then ``operations`` (the families of calls) and one family, ``claims`` or
``enqueue``. ``delivery`` carries calls out: slots, re-sending, the handshake; ``asking`` sends plain commands.
"""
