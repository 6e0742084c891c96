"""Queries of the audit database for people, job handles and metrics.

- ``history``, ``event_list``: the events of a job or a queue, and how far the log reaches; events as lines of a list.
- ``event_pages``, ``ended_claims``: pages of events, and when each schedule was last due; pages of claims that ended.
- ``reports``, ``window``: counts and times of all jobs; of the jobs that ended in a given time.
- ``moments``: the claims in force and the waiting jobs of a queue at one moment.
- ``waits``, ``pauses``, ``occupancy``: what a job waited for; when it could not be claimed; how long a cap was full.
- ``scope_pauses``: the pauses of scopes (such as the jobs of one tenant), and the failures behind them.
- ``schedules``: when a schedule was due, why it was late, and its changes.
- ``endings``: the outcomes of jobs, for callers that wait for jobs.
- ``copies``: the jobs that died, and their JSON, so that copies of them can be enqueued.
- ``questions``: the answers that a web page shows: a job, a moment, events, ended claims, findings.
- ``reader``: the numbers that metrics read repeatedly.
"""
