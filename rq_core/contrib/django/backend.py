"""The backend of Django's own tasks.

    TASKS = {
        "default": {
            "BACKEND": "rq_core.contrib.django.Backend",
            "QUEUES": ["default", "mail"],
            "OPTIONS": {"database": "default", "max_attempts": 5},
        }
    }

Inside ``transaction.atomic()``, ``enqueue`` inserts a row into the inbox, a table in the project's database. A relay
enqueues the job after the commit. Outside of a transaction, ``enqueue`` sends the job to Redis at once.
"""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone

from rq_core.app.app import App
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.inbox.rows import DIALECTS
from rq_core.app.options import JobOptions
from rq_core.app.task import PreparedTask
from rq_core.contrib.django import django_tasks, task_functions, task_results
from rq_core.contrib.django.logged_results import add_claims, logged_result
from rq_core.contrib.django.transactions import at_once_by_backend, is_in_transaction
from rq_core.errors import RqCoreError
from rq_core.model.keys import is_name
from rq_core.model.outcome import Kept, Succeeded
from rq_core.model.table.machine import Priority, State

KEEP_RESULT_S: Final = 86_400
"""Seconds for which Redis keeps the result of a task, unless the option ``keep_result`` says otherwise."""
_OPTIONS: Final = ("app", "audit_result", "database", "keep_result", "max_attempts", "timeout")
_ROW: Final = (
    "SELECT queue, task, args FROM rqc_inbox WHERE job_id = %s"
    " UNION ALL SELECT queue, task, args FROM rqc_inbox_parked WHERE job_id = %s"
)


def priority_class(priority: int) -> Priority:
    """Convert a priority of Django (-100 to 100) to a priority of rq-core: low, normal, high or critical."""
    if priority > 50:
        return Priority.CRITICAL
    if priority > 0:
        return Priority.HIGH
    return Priority.LOW if priority < 0 else Priority.NORMAL


class Backend(django_tasks.BaseTaskBackend):
    """Runs Django's tasks on rq-core's workers. Its OPTIONS:

    - ``app``: the import path of an App, as ``shop.jobs:app``. The default is the project's App, made from RQ_CORE.
    - ``database``: the alias of the database with the inbox; "default" by default. None: there is no inbox, and tasks
      are enqueued at once, also inside a transaction.
    - ``max_attempts``: the number of failed attempts after which a task has failed; 3 by default.
    - ``keep_result``: how long Redis keeps a result, in seconds; a day by default. False keeps none.
    - ``audit_result``: "full" stores results and arguments also in the audit log. They stay there when ``keep_result``
      is over. "digest", the default, stores no values in the audit log.
    - ``timeout``: the limit of one attempt, in seconds; by default the worker's limit.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        # Raise nothing here: an error would end `manage.py check` with a traceback. The checks, and each use of the
        # backend, name the unknown options.
        self._unknown = sorted(map(str, set(self.options) - set(_OPTIONS)))
        self.database: str | None = self.options.get("database", "default")
        self.max_attempts: int = self.options.get("max_attempts", 3)
        self.keep_result: Any = self.options.get("keep_result", KEEP_RESULT_S)
        self.audit_result: Any = self.options.get("audit_result")
        self.timeout: Any = self.options.get("timeout")

    @property
    def app(self) -> App:
        """The App into whose queues this backend enqueues jobs."""
        place = self.options.get("app", "rq_core.contrib.django:app")
        module, _, name = str(place).partition(":")
        found = getattr(importlib.import_module(module), name or "app", None)
        if not isinstance(found, App):
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]: the option app must be MODULE:APP, as shop.jobs:app, not {place!r}"
            )
        return found

    def prepare_worker(self) -> None:
        """Declare the backend's queues, and add all of Django's tasks to the app. Workers of the app then run these
        tasks. Raises ImproperlyConfigured if OPTIONS have an unknown name."""
        self._refuse_unknown()
        for queue in sorted(self.queues):
            self.app.queue(queue)
        task_functions.add_all(self.app, self)

    def validate_task(self, task: Any) -> None:
        """Raise InvalidTask for a task that this backend cannot run."""
        super().validate_task(task)
        for what, name in (("path", task.module_path), ("queue", task.queue_name)):
            if not is_name(name):
                raise django_tasks.InvalidTask(
                    f"The task's {what} {name!r} is no name for rq-core: it may have up to 128 of the characters"
                    " A-Z a-z 0-9 _ . : -"
                )
        task_functions.remember_task(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a job, and return Django's result for it. In a transaction of ``database``, the job is inserted into
        the inbox, a table in this database.

        Raises the errors of PreparedTask.enqueue and TaskWithin.enqueue. Raises ImproperlyConfigured if OPTIONS have an
        unknown name. If the database has no inbox, raises InboxNotMigrated, a subclass of InboxMissing whose message
        names `manage.py migrate`.
        """
        self._refuse_unknown()
        self.validate_task(task)
        normal = task_results.made(task, self.alias, "", args=args, kwargs=kwargs)
        prepared = self._prepared(task)
        given: dict[str, Any] = {"args": normal.args, "kwargs": normal.kwargs}
        if task.priority:
            given["priority"] = task.priority
        if self.alias != task_results.DEFAULT:
            given["alias"] = self.alias
        if self.database is not None and is_in_transaction(self.database):
            handle = prepared.within(self.database).enqueue(**given)
        else:
            with at_once_by_backend():
                handle = prepared.enqueue(**given)
        result = task_results.made(
            task, self.alias, handle.id, args=normal.args, kwargs=normal.kwargs
        )
        django_tasks.signals().task_enqueued.send_robust(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job of one of Django's tasks. Raises TaskResultDoesNotExist.

        The job may have been enqueued through another backend with the same queues: the result then has that backend's
        alias.

        The method looks in Redis, in the inbox, and then in the audit log. The App has an audit log if ``audit`` in
        RQ_CORE, or RQ_CORE_AUDIT_URL, is set. The log also says when the first and the last attempt of a failed job
        began, and which workers ran the job. A job that was cancelled, or is in none of the three, has no result.
        Raises RqCoreError if the server or the database does not answer.
        """
        if is_name(result_id):
            for found in self._looks(result_id):
                if found is not None:
                    return found
        raise django_tasks.exceptions.TaskResultDoesNotExist(result_id)

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """Yield the errors and warnings in the backend's settings, for ``manage.py check``."""
        yield from super().check(**kwargs)
        yield from self._wrong_options()
        if self.database is None:
            return
        if self.database not in connections.settings:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: DATABASES has no alias {self.database!r}.",
                hint="Name the database with the inbox in the option database, or set it to None.",
                id="rq_core.E001",
            )
        elif connections[self.database].vendor not in DIALECTS:
            yield checks.Error(
                f"TASKS[{self.alias!r}]: the database {self.database!r} can have no inbox:"
                f" it must be PostgreSQL or SQLite, not {connections[self.database].display_name}.",
                hint="Set the option database to None: tasks are then enqueued at once, also in a transaction.",
                id="rq_core.E002",
            )
        elif not apps.is_installed("rq_core.contrib.django"):
            yield checks.Warning(
                "INSTALLED_APPS does not have rq_core.contrib.django, so that migrate makes no inbox.",
                hint="Add it, or create the tables with `rq-core inbox migrate`.",
                id="rq_core.W001",
            )

    def _refuse_unknown(self) -> None:
        for error in self._unknown_options():
            raise ImproperlyConfigured(f"{error.msg} {error.hint}")

    def _unknown_options(self) -> Iterator[checks.Error]:
        for name in self._unknown:
            nearest = difflib.get_close_matches(name, _OPTIONS, n=1)
            meant = f"Did you mean {nearest[0]!r}? " if nearest else ""
            yield checks.Error(
                f"TASKS[{self.alias!r}] has the unknown option {name!r}.",
                hint=f"{meant}OPTIONS may have {', '.join(_OPTIONS)}.",
                id="rq_core.E006",
            )

    def _wrong_options(self) -> Iterator[checks.CheckMessage]:
        name = f"TASKS[{self.alias!r}]"
        yield from self._unknown_options()
        try:
            RetryPolicy(max_attempts=self.max_attempts)
            JobOptions("default").changed(**self._limits())
        except RqCoreError as error:
            yield checks.Error(f"{name}: an option in OPTIONS is wrong: {error}", id="rq_core.E004")
        if "app" not in self.options:
            return  # What is wrong with the project's App is rq_core.E003.
        try:
            self.app  # noqa: B018 - it imports the module
        except Exception as error:  # noqa: BLE001 - the module may raise anything
            said = f"{type(error).__name__}: {error}"
            yield checks.Error(
                f"{name}: the option app, {self.options['app']!r}, names no App: {said}",
                hint="Write MODULE:APP, as shop.jobs:app.",
                id="rq_core.E005",
            )

    def _limits(self) -> Any:
        """Return the options of each job of this backend, by name."""
        return {
            "max_attempts": self.max_attempts,
            "timeout": self.timeout,
            "keep_result": self.keep_result,
            "audit_result": self.audit_result,
        }

    def _prepared(self, task: Any) -> PreparedTask[..., Any]:
        found = task_functions.task_in(self.app, task, self)
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        return found.with_options(
            queue=task.queue_name,
            priority=priority_class(task.priority),
            at=at,
            **self._limits(),
        )

    def _looks(self, job_id: str) -> Iterator[Any]:
        """Look for a job in Redis, in the inbox, in Redis again, and in the audit log; yield what each place has.

        The second look in Redis finds a job that a relay has handed over meanwhile.
        """
        yield self._in_redis(job_id)
        if self.database is not None:
            yield self._in_inbox(self.database, job_id)
            yield self._in_redis(job_id)
        if self.app.audit_url is not None:
            yield logged_result(self, self.app.audit_url, self.queues, job_id)

    def _in_redis(self, job_id: str) -> Any:
        client = self.app.client
        queues = sorted(self.queues) or client.run(client.calls.reads.queues())
        job = client.run(client.calls.reads.job(job_id, queues))
        if job is not None:
            spec = task_results.task_in_spec(job.spec)
            task = spec and task_functions.task_of(spec.task)
            result = spec and task and task_results.of_live_job(task, self, job, spec)
            if result and job.state is State.DEAD and self.app.audit_url is not None:
                add_claims(result, self.app.audit_url, job.queue)
            return result
        for queue in queues:
            ended = client.run(client.calls.endings.look(queue, [job_id])).get(job_id)
            if isinstance(ended, Succeeded) and isinstance(ended.kept, Kept):
                document = json.loads(ended.kept.json)
                task = task_functions.task_of(str(ended.kept.task))
                return task and task_results.of_document(task, self, queue, job_id, document)
        return None

    def _in_inbox(self, database: str, job_id: str) -> Any:
        connection = connections[database]
        if "rqc_inbox" not in connection.introspection.table_names():
            return None
        with connection.cursor() as cursor:
            cursor.execute(_ROW, [job_id, job_id])
            row = cursor.fetchone()
        task = row and task_functions.task_of(row[1])
        return task and task_results.of_row(task, self, row[0], job_id, row[2])
