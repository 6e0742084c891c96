"""What a producer holds of jobs that it enqueued, and waiting for them.

Read ``handle`` first.

- ``handle``, ``edit``: one job's handle; changing a job that waits.
- ``bulk``, ``bulk_result``: many jobs at once; what became of each.
- ``awaiting``, ``log_reader``: waiting for ends of jobs, in Redis and then in the audit log.
"""
