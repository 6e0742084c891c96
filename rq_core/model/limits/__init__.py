"""Limits as text: scopes, which are groups of jobs; how many jobs a scope takes; and which scopes a task's jobs have.

- ``scopes``: scopes and lanes.
- ``limit``: caps and rates, and the two ways to write them.
- ``policy``: the rules by which a task's jobs get their scopes, names and options.
"""
