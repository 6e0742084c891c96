"""The web page: current problems, the queues, the history of each job, and the queues at any past moment. It changes
nothing.

:func:`rq_core.web.dashboard.dashboard` mounts it in a Starlette or FastAPI app; ``rq-core web`` serves it alone. It
needs the extra ``web``.

Read ``pages`` first: one table has each page's address, reads, view and template.

- ``pages``: the table of pages, and the questions that each asks Redis and the audit log.
- ``search``: the words of an address and of the search box of /jobs.
- ``views``: the documents of most pages. A template shows a document, and ``.json`` sends it.
- ``job_lists``: the document of /jobs.
- ``schedules``: the documents of schedules.
- ``rows``: the rows of documents.
- ``minutes``: the charts of documents.
- ``words``: times, texts and addresses in the pages.
- ``sources``: questions to Redis, the audit log and an inbox, with limits of time.
- ``access``: decides which viewers see the page.
- ``tokens``: the file of viewers' tokens.
- ``dashboard``: the app.
- ``serve``: the server of ``rq-core web``.
- ``templates/``: the HTML of the pages.
- ``static/``: the stylesheet, and scripts; each page also works without scripts.
"""
