"""Questions that people ask of the audit database.

``history`` has those about a job and about the log, ``timeline`` those about a moment and about a wait.
"""
