"""Runs Django's own tests of task backends with rq-core's backend in the places of Django's two backends.

    python tests/contrib/django_own_tests.py SOURCE        SOURCE: Django's source, of 6.0 or later, with its tests

DummyBackend stores tasks: a backend that enqueues them replaces it. ImmediateBackend runs tasks at once: a backend that
enqueues a task, and then lets a worker run the task, replaces it. The program prints the tests that do not pass. It
exits with 1 unless they are exactly those of DIFFERS. It needs a server, whose URL is in the variable SHOP_REDIS.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

_IMMEDIATE: Final = "test_immediate_backend.ImmediateBackendTestCase"
_DUMMY: Final = "test_dummy_backend.DummyBackendTestCase"
DIFFERS: Final = {
    f"{_IMMEDIATE}.test_cannot_get_result": "results can be read by their ids",
    f"{_IMMEDIATE}.test_cannot_refresh_result": "results can be read again",
    f"{_IMMEDIATE}.test_cannot_pass_run_after": "`run_after` is supported",
    f"{_IMMEDIATE}.test_throws_keyboard_interrupt": "a worker runs the task, so `enqueue` does not raise its errors",
    f"{_IMMEDIATE}.test_complex_return_value": "the error of a value that is not JSON is `GiveUp`, not `TypeError`",
    "test_immediate_backend.ImmediateBackendTransactionTestCase"
    ".test_doesnt_wait_until_transaction_commit_by_default": "a task waits for the commit",
    f"{_DUMMY}.test_get_missing_result": "the inbox is read, so async code must await `aget_result`",
    "test_tasks.TaskTestCase.test_get_missing_result": "likewise",
    f"{_DUMMY}.test_refresh_result": "it changes the list in which DummyBackend has results",
    f"{_DUMMY}.test_refresh_result_async": "likewise",
}
"""The tests that do not pass, and why. docs/how-to/django.md lists them."""


def configure(directory: str) -> None:
    """Configure Django as a project with an inbox in SQLite."""
    import django
    from django.conf import settings

    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{directory}/own.sqlite3",
        "OPTIONS": {"timeout": 20},
        "TEST": {"NAME": f"{directory}/test_own.sqlite3"},
    }
    settings.configure(
        DATABASES={"default": database},
        INSTALLED_APPS=["rq_core.contrib.django"],
        RQ_CORE={
            "redis": os.environ["SHOP_REDIS"],
            "prefix": f"own{os.getpid()}",
            "inbox": "default",
            "audit": f"{directory}/audit.sqlite3",
        },
        TASKS={"default": {"BACKEND": "rq_core.contrib.django.Backend", "QUEUES": []}},
        SECRET_KEY="of a test",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def put_backends() -> None:
    """Put two backends of rq-core in the places of Django's. Django's tests find these by their import paths."""
    import asyncio
    import threading

    from django.tasks.backends import dummy, immediate

    from rq_core import Filter
    from rq_core.contrib.django import Backend, app
    from rq_core.worker import Worker, WorkerOptions
    from sql_audit.mirror.redis_access import Outbox
    from sql_audit.mirror.service import run_mirror

    class Enqueuing(Backend):
        """A backend that enqueues. It notes the ids, so that it has a list ``results`` as DummyBackend has."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.ids: list[str] = []

        @property
        def results(self) -> list[Any]:
            return [self.get_result(each) for each in self.ids]

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.ids.append(result.id)
            return result

        def clear(self) -> None:
            app.cancel_where(Filter(queue="default"))
            self.ids.clear()

    class Running(Backend):
        """Enqueues, and returns when a worker has run the task."""

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.max_attempts = 1

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.prepare_worker()
            # A worker is a process of its own; here it has at least a thread of its own, without the caller's context.
            worker = threading.Thread(target=run_worker)
            worker.start()
            worker.join()
            result.refresh()
            return result

    def run_worker() -> None:
        asyncio.run(Worker(app, WorkerOptions(queues=("default",), burst=True)).run())
        mirror()
        app.close()

    def mirror() -> None:
        assert app.audit_url is not None
        run_mirror(Outbox(app.client), app.audit_url, stop=threading.Event(), once=True)

    mirror()  # makes the log, which `get_result` reads
    dummy.DummyBackend = Enqueuing
    immediate.ImmediateBackend = Running


def ids_of(tests: Iterable[Any]) -> set[str]:
    """Return the names of tests, without the package ``tasks``. A subtest has the name of its test."""
    return {each.id().partition(" ")[0].removeprefix("tasks.") for each in tests}


def main(source: str) -> int:
    """Run the tests. Return the exit status."""
    sys.path.insert(0, str(Path(source, "tests").resolve()))
    with tempfile.TemporaryDirectory() as directory:
        configure(directory)
        put_backends()
        from django.test import SimpleTestCase
        from django.test.runner import DiscoverRunner

        # The tests of backends without a database forbid queries. This backend reads the inbox.
        SimpleTestCase.databases = frozenset({"default"})
        found: list[Any] = []

        class Runner(DiscoverRunner):
            def suite_result(self, suite: Any, result: Any, **kwargs: Any) -> Any:
                found.append(result)
                return super().suite_result(suite, result, **kwargs)

        Runner(verbosity=1, interactive=False).run_tests(["tasks"])
        [result] = found
    bad = [test for test, _ in [*result.failures, *result.errors]]
    differ = ids_of(bad)
    say = sys.stdout.write
    for name in sorted(differ):
        say(f"differs: {name}: {DIFFERS.get(name, 'UNEXPECTED')}\n")
    for name in sorted(DIFFERS.keys() - differ):
        say(f"passes, but is in DIFFERS: {name}\n")
    say(f"{result.testsRun} tests of Django, {len(differ)} differ\n")
    return 0 if differ == DIFFERS.keys() and result.testsRun > len(differ) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
