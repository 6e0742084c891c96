"""Scopes, limits and policies as text. A scope is a group of jobs that are counted together. A limit is the number of
jobs that a scope admits. A policy names the scopes of a task's jobs.

- ``scopes``: scopes and lanes.
- ``limit``: caps and rates, and the two ways to write them.
- ``breakers``: the scopes that pause when a service fails, and their entries in Redis.
- ``breaker_log``: the states of these scopes according to the log.
- ``costs``: how much of a unit a job takes from a rate that counts this unit.
- ``use``: how much of a rate is in use, and whether a scope is open, paused or probing.
- ``pauses``: the cause that the audit log has for the pause of a scope, as text.
- ``policy``: the rules by which a task's jobs get their scopes, names and options.
"""
