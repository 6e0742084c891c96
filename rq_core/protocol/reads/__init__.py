"""Calls that only read queues. An overview takes as many round trips for all queues as for one queue.

Read ``steps`` first.

- ``reads``: the reads of a client.
- ``steps``: carries out one read for many queues, and reads state lines.
- ``overview``: a bounded read of all queues.
- ``queue_load``: the numbers that this read returns.
- ``ranges``: ranges of the indexes of lanes and scopes, many in one command.
- ``scope_reads``: scopes, with exact numbers.
- ``job_reads``: jobs, page by page.
- ``matches``: which of some jobs match a filter.
- ``paging``: all jobs in some states, in pages, for changes of many jobs.
- ``whole_queue``: all data of a queue, for the doctor.
- ``result_reads``: whether jobs have ended, and how.
- ``wait_schedule``: the times at which jobs that clients wait for are looked at.
- ``box_reads``: the boxes of durable jobs.
- ``shown_reads``: the progress of jobs, and the chunks of their streams.
- ``worker_registry``: the list of workers.
"""
