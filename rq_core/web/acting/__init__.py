"""The changes that operators and admins make on the web page.

- ``actions``: the table of actions; a row makes the address, the form and the check of the role.
- ``fields``: the fields of forms, and their values as options.
- ``bulk``: changes of all jobs that match a filter, part by part.
- ``copies``: copies of all jobs that died and match a filter.
- ``forms``: reads a sent form, carries out its action, and keeps the outcome for the next page.
"""
