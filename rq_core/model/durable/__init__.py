"""Durable jobs: what a handler has saved under names, and goes on behind after a crash.

- ``boxes``: reads what the scripts keep of it in Redis.
"""
