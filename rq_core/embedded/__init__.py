"""The Valkey server that comes with rq-core, for development and for tests: one for each data directory.

It owns starting, finding and ending that server. To every other room it is a server like any other.

- ``server``: the server of a data directory.
- ``keeper``: the process that owns the server's process.
"""
