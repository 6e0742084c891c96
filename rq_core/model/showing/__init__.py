"""What running jobs show of themselves.

- ``shown``: how far a job has come, and the chunks of its stream; parses what Redis has of both.
"""
