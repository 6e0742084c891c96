"""Batch tasks without a server: declarations, arguments, direct calls, and jobs on the fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from rq_core import (
    App,
    ArgumentsInvalid,
    Batch,
    Cap,
    DeadJob,
    Depends,
    GiveUp,
    InvalidOption,
    InvalidTask,
    Job,
    MemberFailed,
    RetryPolicy,
    UsageError,
    testing,
)


@dataclass
class Event:
    table: str
    n: int = 1
    tags: list[str] = field(default_factory=list)


class Model(BaseModel):
    table: str
    n: int = 1


class Typed(TypedDict):
    table: str
    n: int


class Other:
    pass


def session() -> str:
    return "db"


def store(jobs: list[Job[Event]]) -> None: ...


def no_annotation(jobs) -> None: ...  # type: ignore[no-untyped-def]


def one_job(job: Job[Event]) -> None: ...


def plain_list(jobs: list[Event]) -> None: ...


def no_fields(jobs: list[Job[int]]) -> None: ...


def other_class(jobs: list[Job[Other]]) -> None: ...


def unknown_class(jobs: list[Job[Nowhere]]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


def two_arguments(jobs: list[Job[Event]], more: int) -> None: ...


def kept_count(jobs: list[Job[Event]]) -> int:
    return len(jobs)


@pytest.mark.parametrize(
    ("handler", "options", "says"),
    [
        (no_annotation, {}, "takes one list of jobs"),
        (one_job, {}, "takes one list of jobs"),
        (plain_list, {}, "takes one list of jobs"),
        (two_arguments, {}, "takes one list of jobs"),
        (lambda: None, {}, "takes one list of jobs"),
        (no_fields, {}, "int cannot be the arguments of its jobs: use a dataclass"),
        (other_class, {}, "Other cannot be the arguments of its jobs"),
        (unknown_class, {}, "name 'Nowhere' is not defined"),
        (kept_count, {"keep_result": True}, "returns None, or a list with the result of each job"),
        (
            store,
            {"batch": Batch(5, per="tabel")},
            "per='tabel', and it has no such argument: it has",
        ),
        (
            store,
            {"caps": [Cap(1, per="tabel")]},
            "per='tabel', and it has no such argument: it has",
        ),
        (store, {"queue": "mail"}, "the queue of a batch task ('task') has no other task"),
    ],
)
def test_a_function_that_cannot_be_a_batch_handler_is_refused(
    handler: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    app = App()
    app.task(queue="mail", name="send")(session)

    with pytest.raises(InvalidTask) as caught:
        app.task(**{"batch": Batch(5), "queue": "events", "name": "task", **options})(handler)

    assert says in str(caught.value)
    assert list(app.tasks) == ["send"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 5}, "must be a Batch, like Batch(500)"),
        ({"isolation": "process"}, "does not go with batch: a batch handler runs in the worker"),
    ],
)
def test_a_batch_task_refuses_options_that_do_not_fit_batches(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidOption) as caught:
        App().task(**{"batch": Batch(5), "queue": "events", **options})(store)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": 1_001},
        {"size": True},
        {"size": 5, "linger": -1},
        {"size": 5, "linger": 10.1},
        {"size": 5, "per": lambda **_: 1},
        {"size": 5, "on_error": "retry"},
    ],
)
def test_an_invalid_option_of_a_batch_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=f"^{list(options)[-1]}"):
        Batch(**options)


def test_the_queue_of_a_batch_task_accepts_no_jobs_of_other_tasks() -> None:
    app = App()
    task = app.task(queue="events", batch=Batch(5), aliases=["keep"])(store)

    @app.task
    def send() -> None: ...

    with pytest.raises(InvalidTask, match="has no other task"):
        app.task(queue="events", name="again")(session)
    with pytest.raises(InvalidOption, match="which has the jobs of a batch task and no others"):
        send.with_options(queue="events")
    with pytest.raises(InvalidOption, match="must be 'events', the queue of the batch task"):
        task.with_options(queue="default")
    with pytest.raises(InvalidOption, match="and no others"):
        app.job("events", "send", {})
    assert app.job("events", "keep", {"table": "t"}).queue == "events"


def of_model(jobs: list[Job[Model]]) -> None: ...


def of_dict(jobs: list[Job[Typed]]) -> None: ...


@pytest.mark.parametrize(
    ("handler", "made", "args_json"),
    [
        (store, Event("t", 2), '{"table":"t","n":2,"tags":[]}'),
        (of_model, Model(table="t", n=2), '{"table":"t","n":2}'),
        (of_dict, Typed(table="t", n=2), '{"table":"t","n":2}'),
    ],
)
def test_the_fields_of_an_object_are_the_arguments_of_its_job(
    handler: Callable[..., Any], made: Any, args_json: str
) -> None:
    """The object becomes JSON and is read back. The same job can be enqueued with its fields, by name."""
    app = App()
    task = app.task(
        queue="events", name="store", batch=Batch(5, per="table"), caps=[Cap(1, per="table")]
    )(handler)

    job = task.job(made)

    assert job.args_json == args_json
    assert job.lane.endswith("+store.table=t")
    assert task.arguments.load(args_json).made == made
    assert app.job("events", "store", {"table": "t", "n": 2}).args_json == args_json


def test_the_error_of_invalid_arguments_of_a_batch_task_names_their_fields() -> None:
    task = App().task(queue="events", batch=Batch(5))(store)

    with pytest.raises(ArgumentsInvalid) as caught:
        task.job({"table": 7, "tabel": "t"})
    assert list(caught.value.fields) == ["table", "tabel"]
    with pytest.raises(ArgumentsInvalid, match="table: is required"):
        task.arguments.load("{}")


def test_equal_arguments_have_the_same_idempotency_digest_whether_defaults_are_given_or_not() -> (
    None
):
    task = App().task(queue="events", batch=Batch(5))(store)
    keyed = task.with_options(idempotency_key="k")

    assert keyed.job(Event("t")).call == keyed.job({"table": "t", "tags": [], "n": 1}).call
    assert keyed.job(Event("t")).call != keyed.job(Event("t", 2)).call


def double(jobs: list[Job[Event]]) -> list[int]:
    for job in jobs:
        if job.args.n < 0:
            job.fail("negative")
    return [2 * job.args.n for job in jobs]


async def double_async(jobs: list[Job[Event]], db: Annotated[str, Depends(session)]) -> list[int]:
    assert db == "db"
    return double(jobs)


def test_a_direct_call_runs_a_batch_of_one_job() -> None:
    app = App()
    task = app.task(queue="events", batch=Batch(5))(double)
    task_async = app.task(queue="more", batch=Batch(5))(double_async)

    assert task(Event("t", 4)) == 8
    assert asyncio.run(task_async(Event("t", 4))) == 8
    with pytest.raises(MemberFailed, match="negative"):
        task(Event("t", -1))
    with pytest.raises(MemberFailed, match="negative"):
        asyncio.run(task_async(Event("t", -1)))


def test_a_test_can_call_a_batch_handler_with_jobs_that_it_created_itself() -> None:
    jobs = [Job(Event("t", n)) for n in (1, -1)]

    assert double(jobs) == [2, -2]
    assert [type(job.failure) for job in jobs] == [type(None), MemberFailed]
    assert not jobs[0].cancelled


def test_only_the_first_valid_failure_of_a_job_counts() -> None:
    job = Job(Event("t"))
    with pytest.raises(UsageError, match="an exception or a text, not 7"):
        job.fail(7)  # type: ignore[arg-type]
    job.fail(ValueError("first"))
    job.fail("second")

    assert str(job.failure) == "first"


def test_the_fake_server_forms_batches_by_size_and_by_key_and_settles_each_job() -> None:
    app = App()
    calls: list[list[int]] = []
    told: list[Any] = []

    def died(job: DeadJob) -> None:
        told.append(job.arguments["n"])

    def stored(jobs: list[Job[Event]]) -> list[int]:
        calls.append([job.args.n for job in jobs])
        for job in jobs:
            if job.args.n == 4:
                job.fail(GiveUp("no use"))
            if job.args.n == 5 and job.context.failures == 0:
                job.fail("not yet")
        return [job.args.n for job in jobs]

    quick = RetryPolicy(max_attempts=2, base=1, jitter=False)
    task = app.task(
        queue="events",
        batch=Batch(6, linger=9, per="table"),
        on_dead=died,
        keep_result=True,
        retry=quick,
    )(stored)
    with testing.fake(app) as fake:
        handles = [task.enqueue(Event("ab"[n % 2], n)) for n in range(8)]
        ran = fake.drain()
        result = handles[5].result(timeout=1)

    assert calls == [[0, 2, 4], [1, 3, 5], [6], [7], [5]]
    assert [each.outcome for each in ran].count("succeeded") == 8
    assert {r.error for r in ran} == {None, "GiveUp: no use", "MemberFailed: not yet"}
    assert told == [4]
    assert result == 5
