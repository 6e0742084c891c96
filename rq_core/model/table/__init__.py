"""The table of states and events: the one description that Lua, Python, SQL and the docs follow.

Read ``machine`` first.

- ``machine``: states, events and transitions.
- ``fields``, ``event_fields``: a job's fields; the fields of each event, in order.
- ``effects``: what each event does to a job's fields.
- ``reasons``: the reasons that events give.
"""
