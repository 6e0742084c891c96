"""The audit log of rq-core in SQL: the mirror that writes the log, and the queries that read the log.

This package may import ``rq_core``; ``rq_core`` never imports this package.
"""
