"""Queries of the audit database for people, job handles and metrics.

- ``history``, ``event_list``: the events of a job or a queue, and watermarks; events as lines of a list.
- ``event_pages``, ``ended_claims``: pages of events and last instants of schedules; pages of claims that ended.
- ``reports``, ``window``: counts and times of all jobs; of the jobs that ended in a given time.
- ``moments``: the claims in force and the waiting jobs of a queue at one moment.
- ``waits``, ``pauses``, ``occupancy``: what a job waited for; when it could not be claimed; how long a scope was full.
- ``scope_pauses``: the pauses of scopes, and the failures behind them.
- ``schedules``: the instants of a schedule, why each was late, and the schedule's changes.
- ``endings``: the outcomes of jobs, for callers that wait for jobs.
- ``copies``: the jobs that died, and their JSON, so that copies of them can be enqueued.
- ``questions``: the answers that a web page shows: a job, a moment, events, ended claims, findings.
- ``reader``: the numbers that metrics read repeatedly.
"""
