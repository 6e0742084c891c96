"""Filters, which choose the jobs of a queue for a change of many jobs. A filter is a Python object, or a text.

- ``job_filter``: the class Filter, and whether a job matches it.
- ``copy_reader``: the protocol by which replays ask an audit log about jobs that died.
- ``filter_text``: the text form, as in ``queue:mail task:send older:1h``.
"""
