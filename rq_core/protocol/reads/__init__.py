"""Calls that only read queues. An overview of all queues takes as many round trips as an overview of one queue.

Read ``steps`` first.

- ``reads``: the reads of a client.
- ``steps``: carries out one read for many queues, and reads state lines.
- ``overview``: a bounded read of all queues.
- ``queue_load``: the types of the numbers that an overview returns.
- ``ranges``: reads many ranges of an index of lanes or scopes in one command.
- ``scope_reads``: scopes, with exact numbers.
- ``rate_reads``: how much of each rate is in use, and which scopes are paused.
- ``job_reads``: jobs, page by page.
- ``matches``: finds which of some jobs match a filter.
- ``paging``: reads all jobs in some states page by page, for changes of many jobs.
- ``whole_queue``: all data of a queue, for the doctor.
- ``result_reads``: whether jobs have ended, and how.
- ``wait_schedule``: when to poll the jobs for which clients wait.
- ``box_reads``: the boxes of durable jobs. A box has a job's saved steps and signals.
- ``shown_reads``: the progress of jobs, and the streams of text that they emit.
- ``worker_registry``: the list of workers.
"""
