"""Limits as text. A scope is a group of jobs that are counted together; a limit is the number of jobs that a scope
admits; a policy says which scopes a task's jobs have.

- ``scopes``: scopes and lanes.
- ``limit``: caps and rates, and the two ways to write them.
- ``costs``: how much of each unit a job takes from rates that count a unit.
- ``policy``: the rules by which a task's jobs get their scopes, names and options.
"""
