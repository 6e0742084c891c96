"""Tests of rq-core within a Django project, which Django's own test runner runs on its test databases."""

import asyncio
import atexit
import datetime as dt
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections, transaction
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from sqlalchemy import create_engine

from rq_core import App, Filter, InboxMissing, ResultUnavailable, RqCoreError, testing
from rq_core.contrib.django import Backend, ClosingConnections, app, database_url
from rq_core.contrib.django.checks import check_project_app
from rq_core.contrib.django.django_tasks import InvalidTask, base, exceptions, signals
from rq_core.contrib.django.setting_up import note_relay, prepare_app, set_up
from rq_core.worker import Worker, WorkerOptions
from shop.models import Order
from shop.other_jobs import jobs
from shop.tasks import (
    count_apart,
    count_orders,
    fail,
    fail_once,
    give_back,
    leave,
    thank,
    thank_async,
    used,
)
from shop.traces import ended, provider
from sql_audit.inbox.database import inbox_url
from sql_audit.inbox.schema import differences, missing_tables
from sql_audit.inbox.service import run_relay
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.service import run_mirror

Status = base.TaskResultStatus
_PLACE = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, _PLACE)
WARNS = "rq_core.contrib.django.transactions"
SETS_UP = "rq_core.contrib.django.setting_up"
LOG = str(_PLACE / "audit.db")
"""The audit log of the tests that use a log. They share it, because a Redis has only one log."""
set_up(os.environ["DJANGO_SETTINGS_MODULE"])
prepare_app(app)


def rows(alias: str = "default") -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM rqc_inbox")
        return int(cursor.fetchone()[0])


def mirror() -> None:
    """Copy all events into the log."""
    run_mirror(Outbox(app.client), LOG, stop=threading.Event(), once=True)


def work(*until: Any) -> None:
    """Hand over the rows of both inboxes, and run a worker until these results are finished."""
    for alias in ("default", "other"):
        run_relay(app.redis_url, app.prefix, database_url(alias), stop=threading.Event(), once=True)
    while True:
        asyncio.run(Worker(app, WorkerOptions(burst=True, concurrency=4)).run())
        for result in until:
            result.refresh()
        if all(result.is_finished for result in until):
            break
    app.close()


class Transactions(TransactionTestCase):
    databases = frozenset({"default", "other"})

    def test_a_rolled_back_transaction_enqueues_no_task(self) -> None:
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            result = thank.enqueue(Order.objects.create(to="a@b.c").pk)
            self.assertEqual(Status.READY, thank.get_result(result.id).status)
            raise ZeroDivisionError
        self.assertEqual(0, rows())
        work()
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            thank.get_result(result.id)

    def test_handles_read_the_inbox_of_the_test_database(self) -> None:
        self.assertEqual(database_url("default"), app.inbox_url)
        with transaction.atomic():
            handle = count_orders.within("default").enqueue()
        self.assertEqual("inbox", handle.state())
        work()
        self.assertEqual("gone", handle.state())
        engine = "django.db.backends.sqlite3"
        in_memory = {"ENGINE": engine, "NAME": "file:memorydb_default?mode=memory&cache=shared"}
        with mock.patch.dict(connections.settings["default"], in_memory):
            self.assertIsNone(app.inbox_url)

    def test_enqueueing_a_plain_task_inside_a_transaction_of_its_inbox_logs_one_warning(
        self,
    ) -> None:
        self.addCleanup(lambda: app.cancel_where(Filter(queue="own")))
        self.addCleanup(lambda: app.cancel_where(Filter(queue="default")))
        with self.assertNoLogs(WARNS):
            count_orders.enqueue()
            with transaction.atomic("other"):
                count_orders.enqueue()  # the App's inbox is in another database
            with transaction.atomic():
                count_orders.within("default").enqueue()
                fail_once.using(backend="at_once").enqueue()  # the setting says so
                transaction.on_commit(count_orders.enqueue)
        with connections["default"].cursor() as cursor:
            cursor.execute("DELETE FROM rqc_inbox")
        with self.assertLogs(WARNS) as logged, transaction.atomic():
            count_orders.enqueue()
            app.enqueue_many([count_orders.job()])
        [line] = logged.output
        self.assertIn("task count_orders was enqueued at once inside a transaction", line)
        self.assertIn("of the database 'default'", line)
        self.assertIn(".within('default')", line)

    def test_the_error_of_a_missing_inbox_names_the_migration(self) -> None:
        says = r"the database 'other' has no inbox.*`python manage.py migrate --database other`"
        with self.assertRaisesRegex(InboxMissing, says), transaction.atomic("other"):
            with connections["other"].cursor() as cursor:
                cursor.execute("ALTER TABLE rqc_inbox RENAME TO no_inbox")
            give_back.using(backend="other").enqueue(1)
        self.assertEqual(0, rows("other"))

    def test_the_error_of_a_plain_task_without_an_inbox_names_the_migration(self) -> None:
        says = r"the database 'other' has no inbox.*`python manage.py migrate --database other`"
        with self.assertRaisesRegex(InboxMissing, says), transaction.atomic("other"):
            with connections["other"].cursor() as cursor:
                cursor.execute("ALTER TABLE rqc_inbox RENAME TO no_inbox")
            count_orders.within("other").enqueue()

    def test_rolling_back_a_savepoint_also_removes_the_task_that_was_enqueued_in_it(self) -> None:
        with transaction.atomic():
            kept = give_back.enqueue(1)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                lost = give_back.enqueue(2)
                raise ZeroDivisionError
        work()
        self.assertEqual(1, give_back.get_result(kept.id).return_value)
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            give_back.get_result(lost.id)

    def test_get_result_finds_a_task_by_its_id_before_and_after_it_has_run(self) -> None:
        before = timezone.now() - dt.timedelta(seconds=1)
        with transaction.atomic():
            order = Order.objects.create(to="a@b.c")
            result = thank.enqueue(order.pk, words="thanks")
        self.assertEqual((1, Status.READY, []), (rows(), result.status, result.worker_ids))
        waiting = thank.get_result(result.id)
        self.assertEqual(([order.pk], {"words": "thanks"}), (waiting.args, waiting.kwargs))
        work()
        self.assertEqual(0, rows())
        found = thank.get_result(result.id)
        self.assertEqual((Status.SUCCESSFUL, "a@b.c: thanks"), (found.status, found.return_value))
        self.assertEqual(([order.pk], {"words": "thanks"}), (found.args, found.kwargs))
        self.assertEqual(("mail", "default"), (found.task.queue_name, found.backend))
        self.assertEqual((1, True), (found.attempts, found.worker_ids[0].startswith("w-")))
        times = [before, found.enqueued_at, found.started_at, found.finished_at, timezone.now()]
        self.assertEqual(sorted(times), times)
        self.assertEqual([], found.errors)
        result.refresh()
        self.assertEqual("a@b.c: thanks", result.return_value)
        with self.assertRaises(exceptions.TaskResultMismatch):
            give_back.get_result(result.id)

    def test_a_view_that_raises_under_atomic_requests_enqueues_no_task(self) -> None:
        self.client.raise_request_exception = False
        self.assertEqual(500, self.client.post("/orders", {"to": "nobody"}).status_code)
        self.assertEqual((0, 0), (rows(), Order.objects.count()))
        made = self.client.post("/orders", {"to": "a@b.c"}).json()
        self.assertEqual((1, 1), (rows(), Order.objects.count()))
        work()
        self.assertEqual("a@b.c: thank you", thank.get_result(made["result"]).return_value)

    def test_each_backend_has_the_inbox_of_its_own_database(self) -> None:
        other = give_back.using(backend="other")
        with transaction.atomic(using="other"):
            result = other.enqueue("there")
            outside = give_back.enqueue("at once")
        self.assertEqual((0, 1), (rows(), rows("other")))
        self.assertEqual("other", other.get_result(result.id).backend)
        work()
        self.assertEqual("there", other.get_result(result.id).return_value)
        self.assertEqual("at once", give_back.get_result(outside.id).return_value)

    def test_each_result_names_the_backend_that_enqueued_its_task(self) -> None:
        other, default = give_back.using(backend="other"), give_back
        there, here = other.enqueue(1), default.enqueue(2)
        for _ in range(2):
            for task in (other, default):
                for result, alias in ((there, "other"), (here, "default")):
                    found = task.get_result(result.id)
                    self.assertEqual((alias, alias), (found.backend, found.task.backend))
            work(there, here)
        self.assertEqual(1, default.get_result(there.id).return_value)
        with override_settings(TASKS={"default": settings.TASKS["default"]}):
            self.assertEqual("default", default.get_result(there.id).backend)

    def test_a_backend_without_a_database_enqueues_at_once(self) -> None:
        with transaction.atomic():
            result = give_back.using(backend="at_once").enqueue(5)
            transaction.set_rollback(True)
        self.assertEqual(0, rows())
        work()
        self.assertEqual(5, give_back.get_result(result.id).return_value)

    def test_an_enqueue_without_autocommit_inserts_a_row_that_a_rollback_removes(self) -> None:
        transaction.set_autocommit(False)
        try:
            give_back.enqueue(1)
            self.assertEqual(1, rows())
            transaction.rollback()
        finally:
            transaction.set_autocommit(True)
        self.assertEqual(0, rows())

    def test_the_priority_queue_name_and_run_after_of_a_task_are_stored_with_its_job(self) -> None:
        soon = timezone.now().replace(microsecond=0) + dt.timedelta(hours=1)
        ids = {
            priority: give_back.using(priority=priority, queue_name="low").enqueue(priority).id
            for priority in (-100, -1, 0, 1, 50, 51, 100)
        }
        later = give_back.using(run_after=soon).enqueue("later")
        client = app.client
        jobs = {n: client.run(client.calls.reads.job(each, ["low"])) for n, each in ids.items()}
        self.assertEqual(
            {
                -100: "low", -1: "low", 0: "normal", 1: "high", 50: "high", 51: "critical",
                100: "critical",
            },
            {n: job.fields.get("priority", "normal") for n, job in jobs.items()},
        )  # fmt: skip
        self.assertEqual(51, give_back.get_result(ids[51]).task.priority)
        delayed = client.run(client.calls.reads.job(later.id, ["default"]))
        self.assertEqual(
            ("scheduled", int(soon.timestamp()) * 1000),
            (str(delayed.state), int(delayed.fields["due"])),
        )
        app.handle_by_id("default", later.id).cancel()
        work()
        self.assertEqual(100, give_back.get_result(ids[100]).return_value)
        self.assertEqual(100, give_back.get_result(ids[100]).task.priority)
        with self.assertRaises(InvalidTask):
            give_back.using(queue_name="unknown")

    def test_a_failed_attempt_is_retried_and_the_context_counts_attempts(self) -> None:
        result = fail_once.enqueue()
        work(result)
        found = fail_once.get_result(result.id)
        self.assertEqual((Status.SUCCESSFUL, [2, result.id]), (found.status, found.return_value))
        self.assertEqual((2, "unknown"), (found.attempts, found.worker_ids[0]))

    def test_a_task_without_attempts_left_has_failed_and_its_result_has_the_error(self) -> None:
        told: list[Any] = []

        def tell(sender: Any, task_result: Any, **_: Any) -> None:
            told.append((sender, task_result.id, task_result.status))

        three = (signals().task_enqueued, signals().task_started, signals().task_finished)
        for signal in three:
            signal.connect(tell)
        try:
            result = fail.enqueue()
            with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
                work(result)
        finally:
            for signal in three:
                signal.disconnect(tell)
        found = fail.get_result(result.id)
        self.assertEqual((Status.FAILED, 2), (found.status, found.attempts))
        (error,) = found.errors
        self.assertEqual("shop.tasks.NoParcel", error.exception_class_path)
        self.assertIn("lost on the way", error.traceback)
        with self.assertRaises(ValueError):
            found.return_value  # noqa: B018 - it raises
        statuses = [Status.READY, Status.RUNNING, Status.RUNNING, Status.FAILED]
        self.assertEqual([(Backend, result.id, each) for each in statuses], told)

    def test_get_result_of_a_running_task_has_the_time_at_which_its_attempt_began(self) -> None:
        # The queue is older than the next task.
        work(thank.enqueue(Order.objects.create(to="a@b.c").pk))
        seen: list[Any] = []

        def look(sender: Any, task_result: Any, **_: Any) -> None:
            seen.append(fail.get_result(task_result.id))

        before = timezone.now()
        signals().task_started.connect(look)
        try:
            result = fail.enqueue()
            with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
                work(result)
        finally:
            signals().task_started.disconnect(look)
        first, _ = seen
        self.assertEqual(Status.RUNNING, first.status)
        self.assertLessEqual(before - dt.timedelta(seconds=0.001), first.started_at)
        self.assertEqual(first.started_at, first.last_attempted_at)

    def test_the_backend_that_enqueued_a_job_determines_how_many_attempts_the_job_has(self) -> None:
        seen: list[tuple[str, str, str]] = []

        def note(sender: Any, task_result: Any, **_: Any) -> None:
            seen.append((task_result.id, task_result.backend, str(task_result.status)))

        signals().task_finished.connect(note)
        try:
            once, twice = (fail.using(backend=name).enqueue() for name in ("logged", "default"))
            with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
                work(once, twice)
        finally:
            signals().task_finished.disconnect(note)
        ended = {each[0]: each[1:] for each in seen}
        self.assertEqual(2, len(seen))
        self.assertEqual(("logged", "FAILED"), ended[once.id])
        self.assertEqual(("default", "FAILED"), ended[twice.id])
        self.assertEqual((1, 2), (once.attempts, twice.attempts))
        often = fail.using(backend="often").enqueue()
        with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
            work(often)
        self.assertEqual(3, often.attempts)

    def test_a_task_that_raises_system_exit_has_failed_and_its_signal_is_sent(self) -> None:
        seen: list[str] = []

        def note(sender: Any, task_result: Any, **_: Any) -> None:
            seen.append(str(task_result.status))

        signals().task_finished.connect(note)
        try:
            result = leave.using(backend="logged").enqueue()
            with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
                work(result)
        finally:
            signals().task_finished.disconnect(note)
        self.assertEqual((Status.FAILED, ["FAILED"]), (result.status, seen))
        self.assertEqual("builtins.SystemExit", result.errors[0].exception_class_path)

    def test_a_receiver_that_raises_does_not_make_a_task_fail(self) -> None:
        def refuse(**_: Any) -> None:
            raise ZeroDivisionError

        three = (signals().task_enqueued, signals().task_started, signals().task_finished)
        for signal in three:
            signal.connect(refuse)
        try:
            with self.assertLogs("django.dispatch") as logged:
                result = give_back.enqueue(5)
                work()
        finally:
            for signal in three:
                signal.disconnect(refuse)
        found = give_back.get_result(result.id)
        self.assertEqual((5, 1, 3), (found.return_value, found.attempts, len(logged.records)))

    def test_a_task_whose_return_value_is_no_json_fails_without_another_attempt(self) -> None:
        for value in ("bytes", "nan"):
            result = give_back.enqueue(value)
            with self.assertLogs("rq_core"):
                work()
            found = give_back.get_result(result.id)
            self.assertEqual((Status.FAILED, 1), (found.status, found.attempts))
            self.assertIn("is not JSON", found.errors[0].traceback)

    def test_a_task_succeeds_though_its_return_value_is_too_long_to_be_kept(self) -> None:
        result = give_back.enqueue("long")
        beside = give_back.enqueue("short", rest="y" * 70_000)
        work()
        found = give_back.get_result(result.id)
        self.assertEqual(Status.SUCCESSFUL, found.status)
        with self.assertRaisesRegex(ResultUnavailable, "longer than 64 KiB"):
            found.return_value  # noqa: B018 - it raises
        found = give_back.get_result(beside.id)
        self.assertEqual(("short", [], {}), (found.return_value, found.args, found.kwargs))

    def test_results_that_redis_no_longer_has_are_read_from_the_audit_log(self) -> None:
        self.addCleanup(setattr, app, "audit_url", app.audit_url)
        # Values are logged in a queue that has a log already.
        give_back.enqueue("first")
        mirror()
        tasks = [give_back.using(backend="logged"), give_back.using(backend="digest")]
        results = [task.enqueue(n, rest=n) for n, task in enumerate(tasks)]
        lost = fail.using(backend="logged").enqueue()
        with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
            work(lost)
        app.prune_where(Filter(queue="default", states=("dead",), task="shop.tasks.fail"))
        later = give_back.using(backend="logged", queue_name="low").enqueue("not run")
        app.handle_by_id("low", later.id).cancel()
        time.sleep(0.06)  # the time for which results are kept
        for task, result in zip(tasks, results, strict=True):
            with self.assertRaises(exceptions.TaskResultDoesNotExist):
                task.get_result(result.id)
        app.audit_url = LOG
        mirror()

        whole = tasks[0].get_result(results[0].id)
        self.assertEqual((Status.SUCCESSFUL, 0), (whole.status, whole.return_value))
        self.assertEqual(([0], {"rest": 0}), (whole.args, whole.kwargs))
        bare = tasks[1].get_result(results[1].id)
        self.assertEqual((Status.SUCCESSFUL, []), (bare.status, bare.args))
        with self.assertRaisesRegex(ResultUnavailable, "no longer has it"):
            bare.return_value  # noqa: B018 - it raises
        for found in (whole, bare):
            self.assertTrue(found.worker_ids[0].startswith("w-"))
            self.assertLessEqual(found.enqueued_at, found.finished_at)
        failed = fail.using(backend="logged").get_result(lost.id)
        self.assertEqual((Status.FAILED, 1), (failed.status, failed.attempts))
        self.assertIn("NoParcel", failed.errors[0].exception_class_path)
        # A task that was cancelled, and one of another name, do not exist.
        with self.assertRaises(exceptions.TaskResultDoesNotExist):
            give_back.get_result(later.id)
        with self.assertRaises(exceptions.TaskResultMismatch):
            thank.get_result(results[0].id)
        # A database that does not answer is no proof that the task does not exist.
        app.audit_url = "postgresql://nobody@127.0.0.1:1/nowhere"
        with self.assertRaises(RqCoreError):
            give_back.get_result(results[0].id)

    def test_the_audit_log_has_the_attempts_of_a_task_that_has_failed(self) -> None:
        self.addCleanup(setattr, app, "audit_url", app.audit_url)
        result = fail.enqueue()
        with self.assertLogs("rq_core"), self.assertLogs(base.__name__.partition(".base")[0]):
            run_relay(
                app.redis_url,
                app.prefix,
                database_url("default"),
                stop=threading.Event(),
                once=True,
            )
            mirror()
            work(result)
        # Without a log, with one that does not answer, and with one that does not have the death yet.
        for url in (None, "postgresql://nobody@127.0.0.1:1/nowhere", LOG):
            app.audit_url = url
            found = fail.get_result(result.id)
            self.assertEqual((Status.FAILED, 2), (found.status, found.attempts))
            self.assertEqual((None, None), (found.started_at, found.last_attempted_at))
            self.assertEqual("unknown", found.worker_ids[0])
        mirror()
        found = fail.get_result(result.id)
        self.assertLessEqual(found.enqueued_at, found.started_at)
        self.assertLess(found.started_at, found.last_attempted_at)
        self.assertLessEqual(found.last_attempted_at, found.finished_at)
        self.assertEqual(2, found.attempts)
        self.assertTrue(all(each.startswith("w-") for each in found.worker_ids))
        # The log says the same when Redis has forgotten the task.
        app.prune_where(Filter(queue="default", states=("dead",), task="shop.tasks.fail"))
        forgotten = fail.get_result(result.id)
        for name in ("started_at", "last_attempted_at", "finished_at", "worker_ids"):
            self.assertEqual(getattr(found, name), getattr(forgotten, name))

    def test_a_trace_goes_from_the_request_through_the_inbox_to_the_task(self) -> None:
        ended.clear()
        tracer = provider.get_tracer("shop")
        with tracer.start_as_current_span("POST /orders"), transaction.atomic():
            result = thank.enqueue(Order.objects.create(to="a@b.c").pk)
        with tracer.start_as_current_span("GET /orders"):
            outside = give_back.enqueue(1)
        work(result, outside)
        spans = {
            (span.name, str(span.attributes.get("messaging.message.id", ""))): span
            for span in ended.get_finished_spans()
        }
        post, get = (spans[f"{verb} /orders", ""] for verb in ("POST", "GET"))
        row = spans["enqueue shop.tasks.thank", result.id]
        ran = spans["process shop.tasks.thank", result.id]
        self.assertEqual(post.context.span_id, row.parent.span_id)
        self.assertEqual([row.context.span_id], [link.context.span_id for link in ran.links])
        alone = spans["process shop.tasks.give_back", outside.id]
        self.assertEqual(get.context.trace_id, alone.context.trace_id)

    def test_an_async_view_enqueues_and_asks_for_the_result(self) -> None:
        order = Order.objects.create(to="a@b.c")
        answer = asyncio.run(self._post(order.pk))
        self.assertEqual("READY", answer["status"])
        work()
        self.assertEqual("a@b.c: at once", thank.get_result(answer["result"]).return_value)

    async def _post(self, order: int) -> Any:
        found = await self.async_client.post("/thanks", {"order": order})
        return found.json()

    def test_sync_handlers_leave_no_database_connection_open(self) -> None:
        used.clear()
        with transaction.atomic():
            order = Order.objects.create(to="a@b.c").pk
            result = thank.enqueue(order)
            count_orders.within("default").enqueue()
        work()
        self.assertEqual("a@b.c: thank you", thank.get_result(result.id).return_value)
        self.assertEqual([None] * 2, [each.connection for each in used])

    def test_a_transaction_that_a_handler_leaves_open_does_not_reach_the_next_handler(self) -> None:
        with transaction.atomic(), ClosingConnections(None):
            pass  # that of the caller stays
        with self.assertRaises(ZeroDivisionError), ClosingConnections(None):
            transaction.atomic().__enter__()
            Order.objects.create(to="left")
            raise ZeroDivisionError
        with ClosingConnections(None):
            self.assertFalse(connections["default"].in_atomic_block)
            Order.objects.create(to="next")
        self.assertEqual(["next"], [order.to for order in Order.objects.all()])

    def test_async_handlers_have_their_own_database_connections_and_leave_none_open(self) -> None:
        used.clear()
        with transaction.atomic():
            order = Order.objects.create(to="a@b.c").pk
            results = [thank_async.enqueue(order) for _ in range(2)]
        work()
        found = [thank_async.get_result(each.id).return_value for each in results]
        self.assertEqual(["a@b.c"] * 2, found)
        self.assertEqual([None] * 2, [each.connection for each in used])
        self.assertIsNot(used[0], used[1])

    def test_the_migration_makes_the_tables_of_the_inbox(self) -> None:
        for alias in ("default", "other"):
            engine = create_engine(inbox_url(database_url(alias)))
            with engine.connect() as connection:
                self.assertEqual(
                    ((), []), (missing_tables(connection), list(differences(connection)))
                )
            engine.dispose()
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)

    def test_undoing_and_repeating_the_migration_keeps_the_rows_of_an_inbox(self) -> None:
        with transaction.atomic(using="other"):
            give_back.using(backend="other").enqueue(1)
        for target in (["zero"], []):
            call_command("migrate", "rq_core", *target, database="other", verbosity=0)
            self.assertEqual(1, rows("other"))


AT_ONCE = {**settings.TASKS["default"], "OPTIONS": {"database": None}}


@override_settings(TASKS={"default": AT_ONCE})
class OnAFake(TransactionTestCase):
    def test_a_test_runs_tasks_without_a_server(self) -> None:
        with testing.fake(app) as fake:
            made = self.client.post("/orders", {"to": "a@b.c"}).json()
            fake.drain()
            found = thank.get_result(made["result"])
        self.assertEqual("a@b.c: thank you", found.return_value)


class Enclosed(TestCase):
    """Tests that Django runs in a transaction, and rolls back."""

    def test_a_task_that_a_testcase_enqueues_is_a_row_in_the_inbox_and_no_job_in_redis(
        self,
    ) -> None:
        result = thank.enqueue(1)
        self.assertEqual((1, Status.READY), (rows(), thank.get_result(result.id).status))
        work_at = app.client.run(app.client.calls.reads.job(result.id))
        self.assertIsNone(work_at)

    def test_the_transaction_that_a_testcase_opens_causes_no_warning(self) -> None:
        self.addCleanup(lambda: app.cancel_where(Filter(queue="own")))
        with self.assertNoLogs(WARNS):
            count_apart.enqueue()
        with self.assertLogs(WARNS), transaction.atomic():
            count_apart.enqueue()


class Settings(TestCase):
    def test_the_check_command_reports_an_unknown_database_alias_in_the_setting_tasks(self) -> None:
        options = {"OPTIONS": {"database": "nowhere"}}
        tasks = {"default": {**settings.TASKS["default"], **options}}
        wrong = self.assertRaisesRegex(SystemCheckError, "rq_core.E001")
        with self.settings(TASKS=tasks), wrong:
            call_command("check")

    def test_the_check_of_a_backend_names_a_wrong_option_or_a_wrong_app(self) -> None:
        for name, value in (
            ("max_attempts", "5"),
            ("timeout", "soon"),
            ("keep_result", "a day"),
            ("audit_result", "all"),
        ):
            [error] = Backend("mail", {"OPTIONS": {name: value}}).check()
            self.assertEqual("rq_core.E004", error.id)
            self.assertIn("TASKS['mail']", error.msg)
            self.assertIn(name, error.msg)
        for app_option in ("shop.jbs:app", "shop.models:Order"):
            [error] = Backend("mail", {"OPTIONS": {"app": app_option}}).check()
            self.assertEqual("rq_core.E005", error.id)
            self.assertIn(f"TASKS['mail']: the option app, '{app_option}'", error.msg)

    def test_the_check_command_names_an_unknown_option_in_tasks_and_the_most_similar_known_option(
        self,
    ) -> None:
        options = {"OPTIONS": {"max_atempts": 5}}
        tasks = {"default": {**settings.TASKS["default"], **options}}
        with self.settings(TASKS=tasks), self.assertRaises(SystemCheckError) as refused:
            call_command("check")
        said = str(refused.exception)
        self.assertIn("(rq_core.E006) TASKS['default'] has the unknown option 'max_atempts'.", said)
        self.assertIn(
            "HINT: Did you mean 'max_attempts'? OPTIONS may have app, audit_result,", said
        )
        with (
            self.settings(TASKS=tasks),
            self.assertRaisesRegex(ImproperlyConfigured, "max_atempts"),
        ):
            thank.enqueue(1)

    def test_the_check_of_the_setting_rq_core_names_what_is_wrong(self) -> None:
        module = "rq_core.contrib.django.project_app"
        own = settings.RQ_CORE
        for wrong, says in (
            (
                {"inbox": "defualt"},
                "RQ_CORE['inbox'] is 'defualt': that is no URL, no file, and no alias",
            ),
            (
                {"server": 1},
                "RQ_CORE has the unknown key 'server'; it may have redis, audit, inbox, prefix,",
            ),
            ({"max_payload": "1"}, "max_payload='1' is not valid"),
            ({"redis": "redis://:a/b@host"}, "must be a URL"),
        ):
            with mock.patch.dict(sys.modules), self.settings(RQ_CORE={**own, **wrong}):
                del sys.modules[module]
                [error] = check_project_app()
            self.assertEqual("rq_core.E003", error.id)
            self.assertIn(says, error.msg)
        with mock.patch.object(app, "redis_url", "127.0.0.1:7391"):
            [error] = check_project_app()
        self.assertIn("is '127.0.0.1:7391', which is no URL of a server", error.msg)
        for url in (
            "redis://h",
            "rediss+sentinel://h/s",
            "redis+cluster://h",
            "unix:///s",
            "embedded://",
        ):
            with mock.patch.object(app, "redis_url", url):
                self.assertEqual([], list(check_project_app()))

    def test_a_worker_without_a_relay_logs_once_that_it_has_none(self) -> None:
        note_relay(None)
        with self.assertLogs(SETS_UP) as logged:
            prepare_app(app)
        [line] = logged.output
        self.assertIn("no relay runs beside this worker", line)
        self.assertIn("the database 'default' and the database 'other'", line)
        self.assertIn("`--inbox default`", line)
        note_relay("default")
        with self.assertNoLogs(SETS_UP):
            prepare_app(app)  # it has a relay
            prepare_app(app)  # as a process of the worker's does
            note_relay(None)
            prepare_app(App())  # another App has no inbox

    def test_a_worker_whose_relay_has_no_tables_names_the_migration(self) -> None:
        file = _PLACE / "empty.sqlite3"
        empty = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file)}
        with mock.patch.dict(connections.settings["other"], empty):
            for _ in range(2):
                note_relay("other")
                with self.assertLogs(SETS_UP) as logged:
                    prepare_app(app)
                [line] = logged.output
                self.assertIn("`python manage.py migrate --database other`", line)
                file.touch()

    def test_the_system_checks_report_each_fault_under_its_own_id(self) -> None:
        fine = Backend("default", {})
        unknown = Backend("default", {"OPTIONS": {"database": "nowhere"}})
        self.assertEqual([], list(fine.check()))
        self.assertEqual(["rq_core.E001"], [each.id for each in unknown.check()])
        with self.settings(INSTALLED_APPS=["shop"]):
            self.assertEqual(["rq_core.W001"], [each.id for each in fine.check()])
        mysql = connections["default"]
        vendor, mysql.vendor = mysql.vendor, "mysql"
        try:
            self.assertEqual(["rq_core.E002"], [each.id for each in fine.check()])
        finally:
            mysql.vendor = vendor

    def test_a_backend_with_an_unknown_option_or_a_wrong_app_is_refused(self) -> None:
        with self.assertRaisesRegex(ImproperlyConfigured, "unknown option 'retries'"):
            Backend("default", {"OPTIONS": {"retries": 3}}).prepare_worker()
        with self.assertRaisesRegex(ImproperlyConfigured, "must be MODULE:APP"):
            Backend("default", {"OPTIONS": {"app": "shop.models:Order"}}).app  # noqa: B018
        own = Backend("default", {"OPTIONS": {"app": "shop.other_jobs:jobs"}}).app
        self.assertIsInstance(own, App)
        self.assertIsNot(own, Backend("default", {}).app)

    def test_a_worker_gets_the_tasks_of_each_backend_that_names_the_app_of_the_worker(self) -> None:
        self.assertNotIn("shop.tasks.thank", jobs.tasks)
        options = {"OPTIONS": {"app": "shop.other_jobs:jobs"}}
        with self.settings(TASKS={"default": {**settings.TASKS["default"], **options}}):
            prepare_app(jobs)
            prepare_app(jobs)
        self.assertEqual("mail", jobs.tasks["shop.tasks.thank"].options.queue)
        self.assertLessEqual({"default", "mail", "low"}, set(jobs.queues))
        (around,) = jobs.surroundings.arounds
        self.assertIs(ClosingConnections, around.function)

    def test_a_task_with_a_queue_name_that_rq_core_does_not_allow_is_refused(self) -> None:
        with self.assertRaisesRegex(InvalidTask, "is no name for rq-core"):
            Backend("default", {"QUEUES": []}).validate_task(_Odd)


class _Odd:
    """A Django task whose queue name contains a space."""

    func = staticmethod(thank.func)
    module_path = "shop.tasks.thank"
    queue_name = "no name"
    priority = 0
    run_after = None
    takes_context = False
