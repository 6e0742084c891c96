"""Filters: which jobs of a queue a change of many jobs is for, in Python and as text.

- ``job_filter``: the class Filter, and whether a job matches it.
- ``copy_reader``: what an audit log answers about jobs that died, for copies of them.
- ``filter_text``: the text form, as in ``queue:mail task:send older:1h``.
"""
