"""The web page. It shows current problems, the queues, each job's history, and the queues at any past moment.

Operators can change jobs, queues and schedules on the page. :func:`rq_core.web.dashboard.dashboard` returns the page as
an app for a Starlette or FastAPI site. ``rq-core web`` serves the page alone. Both need the extra ``web``. ``rq-core
mcp`` gives the same views to programs, and needs the extra ``mcp``.

Read ``pages`` first: its table has, for each page, the address, the reads, the view and the template.

- ``pages``: the table of pages, and what each page reads from Redis and the audit log.
- ``search``: parses addresses, and the text in the search box of /jobs.
- ``views``: the documents of most pages. A document is the dict that a template shows and ``.json`` sends.
- ``job_lists``: the document of /jobs.
- ``schedules``: the documents of schedules.
- ``rows``: the rows of documents.
- ``minutes``: the charts in documents.
- ``words``: formats times, texts and addresses for the pages.
- ``reading``: reads the data of a page from Redis, the audit log and the inbox.
- ``sources``: connections to Redis, the audit log and an inbox, with limits of time.
- ``graph/``: the graph of a flow.
- ``acting/``: the changes that operators and admins make.
- ``routes``: the table of routes, each with the role that it needs, and the tools that are made from the table.
- ``access``: decides who may use the page.
- ``tokens``: the roles, and the file of tokens.
- ``dashboard``: the app.
- ``serve``: the server of ``rq-core web``.
- ``mcp_server``: the views as tools for programs, which ``rq-core mcp`` serves.
- ``templates/``: the HTML of the pages.
- ``static/``: the stylesheet, and scripts; each page also works without scripts.
"""
