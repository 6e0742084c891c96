"""How a call is carried out: plans, re-sending, and whether a server and a queue can be used.

Read ``plan`` first.

- ``plan``: the types from which plans are made.
- ``delivery``: numbers calls, sends them again, and makes the handshake with a queue.
- ``prepared_items``: prepares the next of many calls while the server works.
- ``replies``: turns answers of scripts into results, and refusals and errors of Redis into errors for callers.
- ``retried_commands``: sends plain commands until they are answered, and makes errors of their failures.
- ``prepare``: loads functions into a server.
- ``server_check``: checks whether jobs are safe on a server.
- ``queue_check``: checks whether this version can use a queue.
- ``acl_roles``: the rights that each kind of Redis user needs, and errors about missing rights.
"""
