"""Questions that people ask of the audit database.

- ``history``, ``event_list``: the events of a job or a queue, and watermarks; events as they are shown.
- ``reports``, ``window``: what became of all jobs; of those that ended in a stretch of time.
- ``moments``: a queue at one moment.
- ``waits``, ``pauses``, ``occupancy``: what a job waited for; when it could not be claimed; how long a scope was full.
- ``endings``: how jobs ended, for those who wait.
- ``questions``: what a page asks: one job, one moment, minutes, findings.
- ``reader``: what metrics ask again and again.
"""
