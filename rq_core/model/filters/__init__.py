"""Filters: which jobs of a queue a change of many jobs is for, in Python and as text.

- ``job_filter``: the class Filter, and whether a job matches it.
- ``filter_text``: the text form, as in ``queue:mail task:send older:1h``.
"""
