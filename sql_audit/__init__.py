"""The audit log of rq-core in SQL: the mirror that writes it, and the questions it answers.

It may import ``rq_core``; never the reverse.
"""
