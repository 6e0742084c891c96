"""The operator's changes: prunes old jobs from the log, restores lost jobs to Redis, and switches a log off.

- ``plan``, ``prune``: finds the jobs that a prune would remove; removes them.
- ``survey``, ``restore``: finds the differences that a loss left between SQL and Redis; repairs them.
- ``lost``: decides whether a lost job can be restored.
- ``windows``: finds the ids and names that Redis must remember after their jobs have ended.
- ``lost_schedules``: finds the changes of schedules that Redis lost, and makes them again.
- ``lost_rates``: finds the use of rates and the pauses that Redis lost with all its data, and writes them again.
- ``lost_pauses``: finds the pauses and resumes by operators that Redis lost, and makes them again.
- ``lost_boxes``: finds in the log the saved steps of durable jobs that Redis lost.
- ``lost_results``: finds in the log the results of jobs that have ended.
- ``switch_off``: switches a log off.
"""
