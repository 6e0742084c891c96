"""Caps, rates and fairness, as tasks declare them.

- ``caps``: Cap and Rate.
- ``breaker``: Breaker.
- ``declarations``: all limits that an app's code declares, by queue.
- ``lane_assignment``: chooses a job's lane, its waiting line, by the job's scopes.
- ``costs``: finds how much of each unit a job takes from its rates.
"""
