"""Limits as text: scopes, which count jobs; how many jobs a scope takes; and the tasks that a limit concerns.

- ``scopes``: scopes and lanes.
- ``limit``: a cap or a rate, and both ways to write one.
- ``policy``: where the scopes of a task's jobs come from.
"""
