"""The Valkey server that comes with rq-core, for development and for tests. Each data directory has its own server.

Only this package starts, finds and ends the server. The rest of rq-core uses the server like any other Redis server.

- ``server``: the server of a data directory.
- ``keeper``: the process that starts the server as its child.
"""
