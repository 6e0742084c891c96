"""Calls that only read. Each reads one queue, or several in the same number of round trips.

Read ``steps`` first.

- ``reads``, ``steps``: the reads of a client; carrying out one for many queues, and reading state lines.
- ``overview``, ``queue_load``: a bounded read of all queues; the numbers that it returns.
- ``scope_reads``, ``job_reads``, ``whole_queue``: scopes, exactly; jobs, page by page; all of a queue, for the doctor.
- ``result_reads``, ``wait_schedule``: whether jobs have ended; when to check that.
- ``box_reads``: what durable jobs have saved.
- ``worker_registry``: the list of workers.
"""
