"""rq-core in a Django project: ``"rq_core.contrib.django"`` in INSTALLED_APPS.

Django imports this package before the project's apps are ready. So its names are imported at their first use.

Read ``backend`` first.

- ``project_app``: the project's App, made from the setting RQ_CORE.
- ``backend``: the backend of Django's own tasks.
- ``transactions``: finds out whether a transaction is open, and warns of enqueues that do not wait for its commit.
- ``task_functions``: makes tasks of an App from Django's tasks.
- ``task_results``: makes Django's result objects for jobs in Redis and in the inbox.
- ``logged_results``: makes Django's result objects from the audit log.
- ``django_tasks``: imports ``django.tasks``, or the package ``django_tasks`` for older versions of Django.
- ``databases``: closes database connections around handlers, and makes the URL of a database.
- ``checks``: finds what is wrong in RQ_CORE, for ``manage.py check``.
- ``setting_up``: sets Django up in a worker, and says what its inboxes lack.
- ``preloaded``: sets Django up in the process of an isolated handler.
- ``apps``: the configuration of the app ``rq_core.contrib.django``.
- ``migrations/``: creates the tables of the inbox.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rq_core.app.app import App
    from rq_core.contrib.django.backend import Backend as Backend
    from rq_core.contrib.django.databases import ClosingConnections as ClosingConnections
    from rq_core.contrib.django.databases import database_url as database_url

    app: App
    """The project's App."""
else:
    _MODULES = {
        "app": "project_app",
        "Backend": "backend",
        "ClosingConnections": "databases",
        "database_url": "databases",
    }
    __all__ = list(_MODULES)

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        found = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = found
        return found
