"""Handles of the jobs that a producer enqueued, and waiting for them.

Read ``handle`` first.

- ``handle``, ``edit``: one job's handle; changing a job that waits.
- ``bulk``, ``bulk_result``: many jobs at once; the outcome of each enqueue.
- ``awaiting``, ``log_reader``, ``inbox_look``: waiting for ends of jobs, in Redis and then in the audit log; jobs that
  are in an inbox still.
"""
