"""The progress and the streams that running jobs show.

- ``shown``: how far a job has come, and the chunks of its stream; parses what Redis has of both.
"""
