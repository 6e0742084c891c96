"""Caps, rates and fairness, as tasks declare them.

- ``caps``: Cap and Rate.
- ``declarations``: all limits that an app's code declares, by queue.
- ``lane_assignment``: chooses a job's lane, its waiting line, by the scopes that its arguments name.
- ``costs``: finds what a job costs in the units that its rates count.
"""
