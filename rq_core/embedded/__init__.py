"""The Valkey server that comes with rq-core, for development and for tests. Each data directory has its own server.

This room owns starting, finding and ending the server. Every other room treats it like any other server.

- ``server``: the server of a data directory.
- ``keeper``: the process that owns the server's process.
"""
