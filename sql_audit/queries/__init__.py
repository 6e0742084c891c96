"""Queries of the audit database for people, handles and metrics.

- ``history``, ``event_list``: the events of a job or a queue, and watermarks; events as lines of a list.
- ``event_pages``, ``ended_claims``: pages of events, of the instants of schedules, and of the claims that ended.
- ``reports``, ``window``: how all jobs ended; how the jobs ended that ended in a given time.
- ``moments``: the claims in force and the waiting jobs of a queue at one moment.
- ``waits``, ``pauses``, ``occupancy``: what a job waited for; when it could not be claimed; how long a scope was full.
- ``schedules``: the instants of a schedule, why each was late, and its changes.
- ``endings``: the outcomes of jobs, for callers that wait for jobs.
- ``copies``: the jobs that died, and their JSON, so that copies of them can be enqueued.
- ``questions``: the answers that a web page shows: a job, a moment, events, ended claims, findings.
- ``reader``: the numbers that metrics read repeatedly.
"""
