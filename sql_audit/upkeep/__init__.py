"""The operator's changes: ``prune`` removes old jobs from the log, ``restore`` puts lost jobs back into Redis.

- ``plan``, ``prune``: the jobs that a prune would remove; removing them.
- ``survey``, ``restore``: the differences that a loss left between SQL and Redis; removing them.
- ``lost``, ``windows``: whether a lost job can be put back; ids and names that outlive their jobs.
- ``switch_off``: switching a log off.
"""
