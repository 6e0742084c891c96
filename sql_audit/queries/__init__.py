"""Queries of the audit database for people, job handles and metrics.

- ``history``: the events of a job or a queue, and how far the log reaches.
- ``event_list``: events as lines of a list.
- ``event_pages``: pages of events, and when each schedule was last due.
- ``ended_claims``: pages of claims that ended.
- ``reports``: counts and times of all jobs.
- ``window``: counts and times of the jobs that ended in a given time.
- ``moments``: the claims in force and the waiting jobs of a queue at one moment.
- ``waits``: what a job waited for.
- ``pauses``: when a job could not be claimed.
- ``occupancy``: how long a cap was full.
- ``scope_pauses``: the pauses of scopes (such as the jobs of one tenant), and the failures behind them.
- ``schedules``: when a schedule was due, why it was late, and its changes.
- ``endings``: the outcomes of jobs, for callers that wait for jobs.
- ``copies``: the jobs that died, and their JSON, so that copies of them can be enqueued.
- ``questions``: the answers that a web page shows: a job, a moment, events, ended claims, findings.
- ``reader``: the numbers that metrics read repeatedly.
"""
