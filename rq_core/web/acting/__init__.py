"""The changes that operators and admins make on the web page.

- ``actions``: the table of actions. Each row defines an address, a form, and the role that it needs.
- ``fields``: the fields of forms, and their conversion to options of jobs.
- ``bulk``: changes of all jobs that match a filter, part by part.
- ``copies``: copies of all jobs that died and match a filter.
- ``forms``: reads a sent form, carries out its action, and keeps the outcome for the next page.
"""
