"""Handles of the jobs that a producer enqueued, and waiting for them.

Read ``handle`` first.

- ``handle``: one job's handle.
- ``edit``: changes a job that waits.
- ``bulk``: enqueues many jobs, and waits for many jobs.
- ``bulk_result``: the outcomes of many enqueues.
- ``awaiting``: waits for ends of jobs, in Redis and then in the audit log.
- ``log_reader``: reads ends of jobs from the audit log.
- ``inbox_look``: finds jobs that are still in an inbox.
"""
