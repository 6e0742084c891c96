"""Limits as text: what counts jobs, how many it takes, and which tasks it concerns.

- ``scopes``: scopes and lanes.
- ``limit``: a cap or a rate, and both ways to write one.
- ``policy``: where the scopes of a task's jobs come from.
"""
