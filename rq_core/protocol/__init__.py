"""Every call to a queue, as a plan without I/O.

It owns what is sent, in which order, what an answer means, and what happens when an answer is lost. It does not own
connections: a plan yields commands, and whoever drives it sends them.

Read ``plan`` first, then ``operations`` (what can be asked for) and ``delivery`` (how a call is carried out).
"""
