"""Caps, rates and fairness, as tasks declare them.

- ``caps``: Cap and Rate.
- ``declarations``: all limits that an app's code declares, by queue.
- ``lane_assignment``: a job's lane, from the scopes that its arguments name.
"""
