"""Schedules that an app's code declares, on the fake server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rq_core import App, Cap, InvalidOption, NewJob, Unique, UsageError, current_job, testing
from rq_core.model.schedule import Tick, tick_of
from rq_core.worker.ticker import instants_of

HOUR = 3600.0


def made(**options: Any) -> tuple[App, Any]:
    app = App()

    @app.task(queue="reports", **options)
    def report(day: str = "yesterday") -> str:
        return day

    return app, report


def test_each_instant_enqueues_the_job_of_the_schedule() -> None:
    app, report = made()
    app.schedule("hourly", report.job("today"), cron="0 * * * *", overlap="allow")

    with testing.fake(app) as fake:
        assert [] == fake.enqueued()
        fake.advance(3 * HOUR)
        waiting = fake.enqueued("reports")

        assert 3 == len(waiting)
        assert {("report", "today")} == {(j.task, j.arguments["day"]) for j in waiting}
        instants = [tick_of(j.id) for j in waiting]
        assert [tick.instant_ms % 3_600_000 for tick in instants if tick] == [0, 0, 0]
        assert ["succeeded"] * 3 == [ran.outcome for ran in fake.drain()]


def test_jobs_of_a_schedule_do_not_overlap() -> None:
    app, report = made()
    app.schedule("beat", report.job(), every=10)

    with testing.fake(app) as fake:
        fake.advance(35)
        assert 1 == len(fake.enqueued())
        fake.drain()
        fake.advance(10)
        assert 1 == len(fake.enqueued())


@pytest.mark.parametrize("overlap", ["queue", "replace"])
def test_the_job_of_a_schedule_runs_with_overlap_queue_and_with_overlap_replace(
    overlap: Any,
) -> None:
    """The job's lane names the schedule, which the code of the task does not."""
    app, report = made(caps=[Cap(5)])
    app.schedule("beat", report.job(), every=10, overlap=overlap)

    with testing.fake(app) as fake:
        for _ in range(2):
            fake.advance(25)
            assert 1 == len(fake.enqueued())
            assert ["succeeded"] == [ran.outcome for ran in fake.drain()]


def test_a_drain_does_not_wait_for_schedules() -> None:
    """The drain must end, although a schedule never ends."""
    app, report = made()
    app.schedule("beat", report.job(), every=10)

    with testing.fake(app) as fake:
        report.with_options(delay=60).enqueue()

        assert 1 == len(fake.drain())


def test_a_handler_sees_its_schedule_and_its_instant() -> None:
    app = App()
    seen: list[tuple[str | None, datetime | None]] = []

    @app.scheduled("nightly", cron="0 2 * * *", tz="Europe/Berlin")
    @app.task
    def note() -> None:
        seen.append((current_job().schedule, current_job().tick))

    with testing.fake(app) as fake:
        note.enqueue()
        fake.drain()
        fake.advance(25 * HOUR)
        fake.drain()

    (none, (name, instant)) = seen
    assert (None, None) == none
    assert "nightly" == name
    assert instant is not None
    assert UTC == instant.tzinfo
    assert instant.hour in (0, 1)


def test_the_function_tick_of_reads_the_schedule_and_the_instant_from_a_job_id() -> None:
    assert Tick("a-1", 1_795_312_800_000) == tick_of("tick-a-1-1795312800000")
    assert tick_of("tick-a-179531280000") is None
    assert tick_of("tick-1795312800000") is None
    assert tick_of("order-1795312800000") is None


def test_the_method_schedule_many_refuses_two_schedules_with_one_name_in_a_queue() -> None:
    app, report = made()
    one: tuple[str, NewJob, Any] = ("a", report.job(), {"every": 60})
    other: tuple[str, NewJob, Any] = ("a", report.job(), {"every": 90})

    with (
        testing.fake(app),
        pytest.raises(InvalidOption, match="is there twice for queue 'reports': choose another"),
    ):
        app.schedule_many([one, other])


def test_the_method_schedule_many_returns_the_names_of_the_stored_schedules() -> None:
    app, report = made()

    def for_tenants(*tenants: str) -> Any:
        return (
            (f"digest.{t}", report.job(t), {"cron": "0 8 * * *", "spread": 900}) for t in tenants
        )

    with testing.fake(app) as fake:
        assert (("digest.a", "digest.b"), (), ()) == app.schedule_many(for_tenants("a", "b"))
        assert (("digest.c",), ("digest.a",), ()) == app.schedule_many(for_tenants("a", "c"))
        fake.advance(25 * HOUR)

        assert {"a", "b", "c"} == {j.arguments["day"] for j in fake.enqueued()}


def test_a_schedule_is_paused_resumed_run_and_removed() -> None:
    # An hour apart, so that the time that the test takes passes no second instant.
    app, report = made()
    app.schedule("beat", report.job(), every=3600, overlap="allow")

    with testing.fake(app) as fake:
        assert "changed" == app.pause_schedule("reports", "beat", reason="migration").outcome
        fake.advance(36_000)
        assert [] == fake.enqueued()
        assert "run" == app.run_schedule("reports", "beat").outcome
        assert 1 == len(fake.drain())
        assert "changed" == app.resume_schedule("reports", "beat").outcome
        fake.advance(3600)
        assert 1 == len(fake.drain())
        assert "same" == app.release_schedule("reports", "beat").outcome
        assert "changed" == app.remove_schedule("reports", "beat").outcome
        fake.advance(36_000)
        assert [] == fake.enqueued()
        assert "gone" == app.pause_schedule("reports", "none").outcome


async def test_the_async_methods_pause_resume_and_run_a_schedule() -> None:
    app, report = made()
    schedules = [("beat", report.job(), {"every": 10})]

    with testing.fake(app) as fake:
        assert (("beat",), (), ()) == await app.schedule_many_async(schedules)
        assert "changed" == (await app.pause_schedule_async("reports", "beat")).outcome
        assert "changed" == (await app.resume_schedule_async("reports", "beat")).outcome
        assert "run" == (await app.run_schedule_async("reports", "beat")).outcome
        assert "changed" == (await app.remove_schedule_async("reports", "beat")).outcome
        await app.aclose()
        assert 1 == len(await fake.drain_async())


# What is refused where it is declared.


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (lambda a, j: a.schedule("a b", j, every=5), "must be 1 to 100 of the characters"),
        (lambda a, j: a.schedule("a", j), "must be given, or every"),
        (lambda a, j: a.schedule("a", j, every=0.5), "must be seconds"),
        (lambda a, j: a.schedule("a", j, cron="0 0 30 2 *"), "has the day-of-month '30'"),
        (lambda a, j: a.schedule("a", j, cron="@daily", tz="Mars/Olympus"), "pip install tzdata"),
        (lambda a, j: a.schedule("a", "report", every=5), "must be a job, as task.job"),
        (lambda a, j: [a.schedule("a", j, every=5) for _ in "ab"], "is declared twice in queue"),
        (lambda a, j: a.schedule("a", j._replace(due_ms=5), every=5), "must not name an instant"),
        (lambda a, j: a.schedule("a", j._replace(args_json="x" * 262_144), every=5), "262,144 bytes at most"),
        (lambda a, j: a.schedule("a", j._replace(args_json="ä" * 131_072), every=5), "262,144 bytes at most"),
    ],
)  # fmt: skip
def test_invalid_schedules_are_refused(declare: Callable[[App, NewJob], Any], said: str) -> None:
    app, report = made()

    with pytest.raises(InvalidOption) as refused:
        declare(app, report.job())

    assert said in str(refused.value)


def test_the_method_schedule_refuses_an_unknown_option() -> None:
    app, report = made()

    with pytest.raises(TypeError, match="unexpected keyword argument 'crom'"):
        app.schedule("a", report.job(), crom="@daily")


def test_the_schedule_of_a_unique_task_keeps_the_unique_rule_of_the_task() -> None:
    app, report = made(unique=Unique(per="day"))

    with pytest.raises(InvalidOption, match="its own rule says what overlaps"):
        app.schedule("a", report.job(), every=5, overlap="skip")

    app.schedule("a", report.job(), every=10)
    app.schedule("b", report.job(), every=timedelta(seconds=10))
    with testing.fake(app) as fake:
        fake.advance(20)
        assert 1 == len(fake.enqueued())


def test_a_job_with_an_idempotency_key_cannot_be_scheduled() -> None:
    app, report = made()

    with pytest.raises(InvalidOption, match="each instant has an id of its own"):
        app.schedule("a", report.with_options(idempotency_key="k").job(), every=5)


def test_the_schedule_decorator_needs_a_task_whose_arguments_have_defaults() -> None:
    app = App()

    def plain() -> None: ...

    @app.task
    def send(to: str, subject: str = "hi") -> None: ...

    with pytest.raises(
        UsageError, match=r"^plain is not a task yet.*write @app.scheduled\(…\) above @app.task"
    ):
        app.scheduled("a", every=5)(plain)  # type: ignore[type-var]
    with pytest.raises(
        UsageError, match=r"^send cannot have .*to has no default: use app.schedule\('a', send.job"
    ):
        app.scheduled("a", every=5)(send)


def test_a_queue_that_is_named_only_by_a_schedule_counts_as_declared() -> None:
    app, report = made()
    app.schedule("a", report.with_options(queue="other").job(), every=5)

    assert ["reports", "other"] == app.queues
    assert {"other": ("a",)} == app.schedules


def test_a_damaged_schedule_does_not_delay_other_schedules_that_a_claim_reports_with_it() -> None:
    line = "on v=1 next={0} due={0} last=0 from=code seen=1 was=\n{1}"
    due = {
        "no-rule": line.format(1_795_312_800_000, ""),
        "no-line": "on",
        "far": line.format(10**30, '{"cron":"0 2 * * *","tz":"UTC"}'),
        "good": line.format(1_795_312_800_000, '{"every_ms":60000}'),
    }

    found = {each.name: each.next_ms for each in instants_of(due, 1_795_312_900_000)}

    assert {"far", "good"} == found.keys()
    assert found["far"] == 0
    assert found["good"] > 1_795_312_900_000
