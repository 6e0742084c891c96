"""Filters. A filter selects jobs of one queue for a change of many jobs. It is a Python object or a text.

- ``job_filter``: the class Filter, and whether a job matches it.
- ``copy_reader``: the questions that a replay asks an audit log about dead jobs.
- ``filter_text``: the text form, such as ``queue:mail task:send older:1h``.
"""
