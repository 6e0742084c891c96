"""How a call is carried out: plans, re-sending, and whether a server and a queue can be used.

Read ``plan`` first.

- ``plan``: the vocabulary of plans.
- ``delivery``: call slots, re-sending and the handshake.
- ``prepared_items``: makes the next call of many while the server works.
- ``replies``: the answers of scripts, and the errors that callers get for refusals and for errors of Redis.
- ``retried_commands``: plain commands, sent until there is an answer, and their errors.
- ``prepare``: loads functions into a server.
- ``server_check``: checks whether jobs are safe on a server.
- ``queue_check``: checks whether this version can use a queue.
- ``acl_roles``: rights of roles, and errors about missing rights.
"""
