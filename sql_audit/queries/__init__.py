"""Questions that people ask of the audit database.

- ``history``, ``event_list``: a job's events, and reports; events as they are shown.
- ``endings``: how jobs ended, for those who wait.
- ``timeline``, ``occupancy``, ``pauses``, ``window``: a moment and a wait; how long a scope was full; when a job could
  not be claimed; a stretch of time.
- ``reader``: what metrics ask again and again.
"""
