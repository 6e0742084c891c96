"""The web page: current problems, the queues, the history of each job, and the queues at any past moment. It changes
nothing.

:func:`rq_core.web.dashboard.dashboard` mounts it in a Starlette or FastAPI app; ``rq-core web`` serves it alone. It
needs the extra ``web``.

Read ``pages`` first: one table has each page's address, reads, view and template.

- ``pages``: the table of pages, and the questions that each asks Redis and the audit log.
- ``search``: the words of an address and of the search box of /jobs.
- ``views``, ``job_lists``, ``schedules``: the documents of the pages, made without I/O; a template shows a document,
  and ``.json`` sends it.
- ``rows``, ``minutes``: the rows of a document; its charts.
- ``words``: times, texts and addresses in the pages.
- ``sources``: questions to Redis, the audit log and an inbox, with limits of time.
- ``access``, ``tokens``: the viewers; the file of their tokens.
- ``dashboard``, ``serve``: the app; the server of ``rq-core web``.
- ``templates/``, ``static/``: HTML, the stylesheet, and scripts; without scripts each page still works.
"""
