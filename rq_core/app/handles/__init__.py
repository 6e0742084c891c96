"""Handles of enqueued jobs, and the wait for the jobs' ends.

Read ``handle`` first.

- ``handle``: one job's handle.
- ``edit``: the options of a change to a waiting job.
- ``bulk``: enqueues many jobs, and waits for many jobs.
- ``bulk_result``: the outcomes of ``enqueue_many``.
- ``awaiting``: waits for the ends of jobs. It asks Redis, and then the audit log.
- ``watching``: follows the progress and the stream of a job.
- ``signals``: sends signals to durable jobs.
- ``signal_call``: makes the call that sends a signal.
- ``log_reader``: reads from the audit log how jobs ended.
- ``inbox_look``: finds jobs that are still in an inbox.
"""
