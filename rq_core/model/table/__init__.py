"""The table of states and events. Lua, Python, SQL and the docs are made from this table, or checked against it.

Read ``machine`` first.

- ``machine``: states, events and transitions.
- ``fields``: a job's fields.
- ``event_fields``: the fields of each event, in order.
- ``effects``: the effect of each event on a job's fields.
- ``reasons``: the reasons that events give.
"""
