"""What an operator changes: ``prune`` removes old jobs from the log, ``restore`` puts lost jobs back into Redis.

- ``plan``, ``prune``: what a prune would remove; removing it.
- ``restore``, ``lost``, ``windows``: putting lost jobs back; which can be; remembered ids.
- ``switch_off``: switching a log off.
"""
