"""How a call is carried out: plans, re-sending, and whether a server and a queue can be used.

Read ``plan`` first.

- ``plan``, ``delivery``: the vocabulary of plans; call slots, re-sending and the handshake.
- ``prepared_items``: the next call of many, made while the server works.
- ``replies``: the answers of scripts, and the errors that callers get for refusals and for errors of Redis.
- ``retried_commands``: plain commands, sent until there is an answer, and their errors.
- ``prepare``, ``server_check``, ``queue_check``: loading functions; whether a server is fit; whether this version can
  use a queue.
- ``acl_roles``: rights of roles, and errors about missing rights.
"""
