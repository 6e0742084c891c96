"""Scopes, limits and policies as text. A scope is a group of jobs that are counted together. A limit is the number of
jobs that a scope admits. A policy names the scopes of a task's jobs.

- ``scopes``: scopes and lanes.
- ``limit``: caps and rates, and the two ways to write them.
- ``breakers``: the scopes that pause when a service fails, and their entries in Redis.
- ``breaker_log``: computes from the log whether such a scope is open or paused.
- ``costs``: how much of a unit a job takes from a rate that counts this unit.
- ``use``: how much of a rate is in use, and whether a scope is open, paused, or tested by a single job (probing).
- ``pauses``: phrases about the cause of a scope's pause, from the audit log.
- ``policy``: the rules by which a task's jobs get their scopes, names and options.
"""
