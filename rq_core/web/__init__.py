"""The web page: what is wrong first, then the queues, one job's way, and any moment of the past. It changes nothing.

:func:`rq_core.web.dashboard.dashboard` mounts it in a Starlette or FastAPI app; ``rq-core web`` serves it alone. It
needs the extra ``web``.

Read ``pages`` first: one table has each page's address, reads, view and template.

- ``pages``: the table of pages, and what each asks of Redis and of the audit log.
- ``search``: the words of an address and of the search box of /jobs.
- ``views``, ``job_lists``, ``schedules``: the documents of the pages, without input or output: the templates show a
  document, and ``.json`` sends it.
- ``rows``, ``minutes``: the rows of a document; its charts.
- ``words``: times, texts and addresses in them.
- ``sources``: what is asked of Redis and of the audit log, within bounds of time.
- ``access``, ``tokens``: the viewers; the file of their tokens.
- ``dashboard``, ``serve``: the app; the server of ``rq-core web``.
- ``templates/``, ``static/``: HTML, the stylesheet, and scripts; without scripts each page still works.
"""
