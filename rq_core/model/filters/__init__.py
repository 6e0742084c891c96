"""Filters. A filter selects jobs of one queue, such as the jobs that an operator cancels or requeues together. It is a
Python object or a text.

- ``job_filter``: the class Filter, and whether a job matches it.
- ``copy_reader``: reads dead jobs from an audit log, for a replay that enqueues copies of them.
- ``filter_text``: the text form, such as ``queue:mail task:send older:1h``.
"""
