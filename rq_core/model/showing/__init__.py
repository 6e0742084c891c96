"""The progress of running jobs, and the streams that their handlers emit.

- ``shown``: parses what Redis has of a job's progress and of its stream's chunks.
"""
