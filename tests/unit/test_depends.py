"""Dependencies of tasks: how a signature declares them, when they are entered and exited, and which are refused."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import pytest

from rq_core import (
    App,
    ArgumentsInvalid,
    DeadJob,
    Depends,
    GiveUp,
    InvalidOption,
    InvalidTask,
    NoCurrentJob,
    RetryPolicy,
    current_job,
    injected,
    testing,
)
from rq_core.model.events import decode

if TYPE_CHECKING:
    from nowhere import Elsewhere

seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@pytest.fixture
def app() -> App:
    return App("redis://nowhere.invalid")


def ran(app: App, *tasks: Any) -> list[str]:
    """Run one job of each task. Return their outcomes, or the exception that was raised."""
    with testing.fake(app) as fake:
        for task in tasks:
            task.with_options(max_attempts=1).enqueue()
        return [run.error or run.outcome for run in fake.drain()]


# Providers of each kind.


def plain() -> str:
    return "plain"


async def awaited() -> str:
    await asyncio.sleep(0)
    return "awaited"


def generator() -> Iterator[str]:
    seen.append("+generator")
    try:
        yield "generator"
    finally:
        seen.append("-generator")


async def async_generator() -> AsyncIterator[str]:
    seen.append("+async_generator")
    try:
        yield "async_generator"
    finally:
        await asyncio.sleep(0)
        seen.append("-async_generator")


managed = contextmanager(generator)
async_managed = asynccontextmanager(async_generator)


class Managed:
    def __enter__(self) -> str:
        seen.append("+Managed")
        return "Managed"

    def __exit__(self, *_: object) -> None:
        seen.append("-Managed")


class AsyncManaged:
    async def __aenter__(self) -> str:
        seen.append("+AsyncManaged")
        return "AsyncManaged"

    async def __aexit__(self, *_: object) -> None:
        seen.append("-AsyncManaged")


class Both(Managed, AsyncManaged):
    pass


SYNC: list[tuple[Callable[[], Any], str]] = [
    (plain, "plain"),
    (lambda: plain(), "plain"),
    (functools.partial(str, "text"), "text"),
    (generator, "generator"),
    (lambda: generator(), "generator"),
    (managed, "generator"),
    (Managed, "Managed"),
    (functools.partial(Managed), "Managed"),
    (Both, "Managed"),
]
ASYNC: list[tuple[Callable[[], Any], str]] = [
    (awaited, "awaited"),
    (lambda: awaited(), "awaited"),
    (async_generator, "async_generator"),
    (lambda: async_generator(), "async_generator"),
    (async_managed, "async_generator"),
    (AsyncManaged, "AsyncManaged"),
]


def left_what_was_entered() -> bool:
    return [each[1:] for each in seen if each[0] == "+"] == [
        each[1:] for each in reversed(seen) if each[0] == "-"
    ]


@pytest.mark.parametrize("scope", ["attempt", "process"])
@pytest.mark.parametrize(("provider", "value"), SYNC)
def test_each_kind_of_provider_is_entered_and_exited_for_a_def_handler(
    app: App, provider: Any, value: str, scope: Any
) -> None:
    def task(thing: str = Depends(provider, scope=scope)) -> None:
        assert thing == value
        assert current_job().task == "task"

    assert ran(app, app.task(task)) == ["succeeded"]
    assert left_what_was_entered()


@pytest.mark.parametrize("scope", ["attempt", "process"])
@pytest.mark.parametrize(
    ("provider", "value"), [(p, "AsyncManaged" if p is Both else v) for p, v in SYNC] + ASYNC
)
def test_each_kind_of_provider_is_entered_and_exited_for_an_async_handler(
    app: App, provider: Any, value: str, scope: Any
) -> None:
    async def task(thing: str = Depends(provider, scope=scope)) -> None:
        await asyncio.sleep(0)
        assert thing == value
        assert current_job().task == "task"

    assert ran(app, app.task(task)) == ["succeeded"]
    assert left_what_was_entered()


def test_an_object_that_a_plain_function_returns_is_not_closed(app: App) -> None:
    """The whole program may use the object, for example a client."""
    shared = Both()

    @app.task
    def in_thread(client: Both = Depends(lambda: shared)) -> None:
        assert client is shared

    @app.task
    async def on_loop(client: Both = Depends(lambda: shared)) -> None:
        assert client is shared

    assert ran(app, in_thread, on_loop) == ["succeeded", "succeeded"]
    assert seen == []


# No argument of the job.


def test_a_dependency_is_not_an_argument_of_the_job(app: App) -> None:
    @app.task
    def report(
        month: str,
        *,
        year: int = 2026,
        db: Annotated[Elsewhere, Depends(plain)],
        log: str = Depends(plain),
    ) -> None:
        seen.append((month, year, db, log))

    bare = App().task(name="report")(lambda month, *, year=2026: None)
    job = report.job("may")

    assert job.args_json == bare.job("may").args_json == '{"month":"may"}'
    assert report.arguments.names == ("month", "year")
    with testing.fake(app) as fake:
        report.enqueue("may")
        (waiting,) = fake.enqueued()
        fake.drain()
    assert waiting.arguments == {"month": "may"}
    assert seen == [("may", 2026, "plain", "plain")]
    assert hashlib.sha256(job.args_json.encode())  # What the digest is of.


def test_enqueue_refuses_a_value_for_a_dependency(app: App) -> None:
    @app.task
    def report(month: str, db: str = Depends(plain)) -> None: ...

    for enqueue in (
        lambda: report.job("may", db="mine"),
        lambda: report.job("may", "mine"),
        lambda: app.job("default", "report", {"month": "may", "db": "mine"}),
    ):
        with pytest.raises(ArgumentsInvalid):
            enqueue()
    with pytest.raises(ArgumentsInvalid, match="db: is filled by its Depends, and cannot be given"):
        report.job("may", db="mine")


def test_a_job_with_an_argument_for_a_dependency_is_not_run(app: App) -> None:
    """A producer without the task's code, or with older code, can send such an argument."""

    @app.task
    def report(month: str, db: str = Depends(plain)) -> None:
        seen.append(db)

    with testing.fake(app) as fake:
        App("redis://nowhere.invalid", connections=app.connections).enqueue(
            "default", "report", {"month": "may", "db": "theirs"}, max_losses=1
        )
        (claim,) = fake._claim(("default",))[0]
        settlements: list[Any] = []

        async def run() -> None:
            from rq_core.worker.execution.executor import Executor

            executor = Executor(
                app.tasks,
                worker="w",
                threads=1,
                timeout=None,
                on_settlement=settlements.append,
                on_free=lambda _: None,
                surroundings=app.surroundings,
            )
            assert executor.start(claim) is None
            executor.close()

        asyncio.run(run())
    assert [(s.verdict, s.reason) for s in settlements] == [("rollback", "unknown_arguments")]
    assert "db: is filled by its Depends" in settlements[0].error
    assert seen == []


# The order and number of calls.


def test_each_attempt_calls_a_provider_once_and_exits_providers_in_reverse_order(app: App) -> None:
    def first() -> Iterator[int]:
        seen.append("+first")
        yield len(seen)
        seen.append("-first")

    def second(one: int = Depends(first)) -> Iterator[int]:
        seen.append("+second")
        yield one
        seen.append("-second")

    @app.task(retry=RetryPolicy(max_attempts=2, base=0.01, jitter=False))
    def task(b: int = Depends(second), a: int = Depends(first), c: int = Depends(second)) -> None:
        assert a == b == c
        seen.append("handler")
        if current_job().claim == 1:
            raise ValueError

    with testing.fake(app) as fake:
        task.enqueue()
        assert [run.outcome for run in fake.drain()] == ["scheduled", "succeeded"]
    # The first attempt failed, and these providers do nothing for a failure.
    once = ["+first", "+second", "handler"]
    assert seen == [*once, *once, "-second", "-first"]


async def test_a_process_dependency_is_created_once(app: App) -> None:
    made = asyncio.Event()

    async def pool() -> AsyncIterator[object]:
        with pytest.raises(NoCurrentJob):
            current_job()
        seen.append("+pool")
        task = asyncio.current_task()
        yield object()
        # Some things must be left by the task that entered them.
        assert task is asyncio.current_task()
        seen.append("-pool")

    def sync_pool() -> Iterator[str]:
        seen.append("+sync")
        yield "sync"
        seen.append("-sync")

    @app.task
    async def on_loop(
        one: object = Depends(pool, scope="process"), two: str = Depends(sync_pool, scope="process")
    ) -> None:
        seen.append(one)
        made.set()

    @app.task
    def in_thread(two: str = Depends(sync_pool, scope="process")) -> None:
        seen.append(two)

    with testing.fake(app) as fake:
        on_loop.enqueue()
        in_thread.enqueue()
        on_loop.enqueue()
        outcomes = [run.outcome for run in await fake.drain_async()]

    assert outcomes == ["succeeded"] * 3
    assert made.is_set()
    _, pool_object, *_ = seen[1:]
    assert seen == ["+pool", "+sync", pool_object, "sync", pool_object, "-sync", "-pool"]


def test_a_process_dependency_that_failed_is_created_again_for_the_next_job(app: App) -> None:
    def pool() -> str:
        seen.append("tried")
        if len(seen) < 3:
            raise ConnectionError("away")
        return "pool"

    async def on_loop(pool: str = Depends(pool, scope="process")) -> None: ...
    def in_thread(pool: str = Depends(pool, scope="process")) -> None: ...

    one, two = app.task(on_loop), app.task(in_thread)

    assert ran(app, one, two, one, two) == ["ConnectionError: away"] * 2 + ["succeeded"] * 2
    assert seen == ["tried"] * 3


# Errors.


def test_a_dependency_sees_the_error_of_the_handler_and_cannot_suppress_it(app: App) -> None:
    def hides(name: str) -> Callable[[], Iterator[str]]:
        def provider() -> Iterator[str]:
            try:
                yield name
            except BaseException as error:
                seen.append((name, type(error).__name__))

        return provider

    async def hides_async() -> AsyncIterator[None]:
        with contextlib.suppress(BaseException):
            yield

    @app.around
    def around(job: Any) -> Iterator[None]:
        yield from hides("around")()

    @app.task
    def in_thread(a: str = Depends(hides("outer")), b: str = Depends(hides("inner"))) -> None:
        raise KeyError("gone")

    @app.task
    async def on_loop(a: str = Depends(hides("outer")), b: None = Depends(hides_async)) -> None:
        raise KeyError("gone")

    assert ran(app, in_thread, on_loop) == ["KeyError: 'gone'"] * 2
    assert seen == [
        ("inner", "KeyError"), ("outer", "KeyError"), ("around", "KeyError"),
        ("outer", "KeyError"), ("around", "KeyError"),
    ]  # fmt: skip


def test_an_attempt_fails_if_a_dependency_fails_to_exit_but_all_other_dependencies_are_exited(
    app: App,
) -> None:
    def commits() -> Iterator[None]:
        yield
        raise ConnectionError("lost at commit")

    @app.task
    def in_thread(a: str = Depends(generator), b: None = Depends(commits)) -> None: ...

    @app.task
    async def on_loop(a: str = Depends(async_generator), b: None = Depends(commits)) -> None: ...

    assert ran(app, in_thread, on_loop) == ["ConnectionError: lost at commit"] * 2
    assert seen == ["+generator", "-generator", "+async_generator", "-async_generator"]


def test_middleware_may_replace_the_error_of_the_handler(app: App) -> None:
    """A middleware can thus decide which errors are not retried."""

    @app.around
    @contextmanager
    def translate(job: Any) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise GiveUp("no such row") from error

    @app.task
    def task() -> None:
        raise KeyError

    with testing.fake(app) as fake:
        task.enqueue()
        assert [(run.outcome, run.error) for run in fake.drain()] == [
            ("dead", "GiveUp: no such row")
        ]


def test_a_failing_entry_of_a_dependency_exits_the_entered_dependencies(
    app: App,
) -> None:
    """The attempt fails."""

    def broken(before: Annotated[str, Depends(generator)]) -> NoReturn:
        raise ConnectionError("away")

    @app.task
    def task(a: Any = Depends(broken)) -> None:
        seen.append("handler")

    assert ran(app, task) == ["ConnectionError: away"]
    assert seen == ["+generator", "-generator"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_provider_that_yields_twice_or_never_is_named_in_the_error(
    app: App, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    def twice() -> Iterator[None]:
        yield
        yield

    def never() -> Iterator[None]:
        yield from ()

    async def twice_async() -> AsyncIterator[None]:
        yield
        yield

    async def never_async() -> AsyncIterator[None]:
        for nothing in ():
            yield nothing

    if is_async:

        async def yields_twice(a: None = Depends(twice_async)) -> None: ...
        async def yields_never(a: None = Depends(never_async)) -> None: ...
    else:

        def yields_twice(a: None = Depends(twice)) -> None: ...  # type: ignore[misc]
        def yields_never(a: None = Depends(never)) -> None: ...  # type: ignore[misc]

    with testing.fake(app) as fake:
        for task in (app.task(yields_twice), app.task(yields_never)):
            task.with_options(max_attempts=1).enqueue()
        ids = [run.id for run in fake.drain()]
        client = app.client
        outbox = client.run(client.calls.audit.read_outbox("default", "-", 100))
        events = [each for entry_id, raw in outbox for each in decode(entry_id, raw).jobs]
        found = {event.job_id: event.fields for event in events}
        errors = [found[each]["error"]["traceback"] for each in ids]
    assert "generator didn't stop" in str(errors[0])
    assert "(raised while leaving the dependency" in str(errors[0])
    assert "generator didn't yield" in str(errors[1])
    assert "(raised while entering the dependency" in str(errors[1])
    assert "twice" in str(errors[0])
    assert "never" in str(errors[1])


# What is refused when the task is defined.


def refused(app: App, function: Any) -> str:
    with pytest.raises(InvalidTask) as caught:
        app.task(function)
    assert function.__name__ not in app.tasks, "a task that is refused leaves no trace"
    return str(caught.value)


def test_an_async_dependency_of_a_def_task_is_refused(app: App) -> None:
    def deeper(one: Annotated[str, Depends(async_managed)]) -> str:
        return one

    for provider in (awaited, async_generator, async_managed, AsyncManaged, deeper):

        def task(thing: Any = Depends(provider)) -> None: ...

        said = refused(app, task)
        assert "it is a `def` function, and its dependency" in said
        assert "is async" in said


def test_the_attempt_of_a_def_handler_fails_if_a_nested_dependency_is_async(
    app: App,
) -> None:
    @app.task
    def one(thing: Any = Depends(lambda: awaited())) -> None: ...
    @app.task
    def two(thing: Any = Depends(lambda: async_generator())) -> None: ...

    assert ran(app, one, two) == ["UsageError: it is async, and a `def` handler needs it"] * 2


def test_a_cycle_of_dependencies_is_refused(app: App) -> None:
    def one(x: Any) -> None: ...
    def two(x: Any = Depends(one)) -> None: ...

    one.__annotations__["x"] = Annotated[int, Depends(two)]

    def task(x: Any = Depends(one)) -> None: ...

    assert "its dependencies form a cycle: " in (said := refused(app, task))
    assert [each.rpartition(".")[2] for each in said.rstrip(".").split(" → ")] == [
        "one",
        "two",
        "one",
    ]


def test_a_dependency_on_the_task_itself_is_refused(app: App) -> None:
    def task(x: Any) -> None: ...

    task.__annotations__["x"] = Annotated[int, Depends(task)]

    assert "cycle: " in refused(app, task)


def test_a_process_dependency_cannot_depend_on_an_attempt_dependency(app: App) -> None:
    def pool(one: Annotated[str, Depends(generator)]) -> str:
        return one

    def task(x: Any = Depends(pool, scope="process")) -> None: ...

    assert "pool lives as long as the process, and needs generator, which lives" in refused(
        app, task
    )


def test_a_provider_with_a_required_parameter_and_no_dependency_for_it_is_refused(app: App) -> None:
    def pool(url: str, size: int = 3, *others: int, **more: int) -> str:
        return url

    def task(x: Any = Depends(pool)) -> None: ...

    assert "has a parameter url that nothing fills" in refused(app, task)


def test_an_argument_after_a_dependency_is_refused(app: App) -> None:
    """The argument would be the second one in a direct call, and the first one in a job."""

    def task(db: Annotated[str, Depends(plain)], month: str) -> None: ...

    assert "its argument month comes after db, which a Depends fills" in refused(app, task)


def test_two_dependencies_for_one_parameter_are_refused(app: App) -> None:
    def twice(x: Annotated[str, Depends(plain), Depends(generator)]) -> None: ...
    def both(x: Annotated[str, Depends(plain)] = Depends(generator)) -> None: ...

    assert "has two Depends" in refused(app, twice)
    assert "has two Depends" in refused(app, both)


def test_an_injected_parameter_without_depends_in_its_annotation_is_refused(app: App) -> None:
    def task(x: str = injected) -> None: ...

    assert "its parameter x is injected, and its annotation has no Depends" in refused(app, task)


def test_a_positional_only_dependency_is_refused(app: App) -> None:
    def task(x: Annotated[str, Depends(plain)], /) -> None: ...

    assert "by position only" in refused(app, task)


def test_an_unhashable_provider_is_refused(app: App) -> None:
    class Provider:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    provider = Provider()

    def task(x: Any = Depends(provider)) -> None: ...

    assert "is not hashable" in refused(app, task)


@pytest.mark.parametrize("what", [5, "session", None, plain()])
def test_depends_accepts_only_a_callable(what: Any) -> None:
    with pytest.raises(InvalidOption, match="must get a function or a class"):
        Depends(what)


def test_depends_accepts_only_two_scopes() -> None:
    with pytest.raises(InvalidOption, match='must be "attempt" or "process"'):
        Depends(plain, scope="request")  # type: ignore[arg-type]
    assert repr(Depends(plain)) == "Depends(plain)"
    assert repr(Depends(Managed, scope="process")) == 'Depends(Managed, scope="process")'


# Annotations that are text, as everywhere in this file.

Alias = Annotated["Elsewhere", Depends(plain)]


def test_depends_is_found_in_annotations_whose_types_cannot_be_resolved(app: App) -> None:
    """The types exist only for type checkers. The app needs ``Depends``, and not the type."""

    @app.task
    def task(
        n: int,
        a: Annotated[Elsewhere | None, Depends(plain)],
        b: Alias,
        c: Annotated[Elsewhere[int].part, Depends(plain)] = injected,
        d: Annotated[dict[str, Elsewhere], Depends(plain)] = injected,
    ) -> None: ...

    assert task.arguments.names == ("n",)
    assert sorted(task.steps) == ["a", "b", "c", "d"]


def test_a_depends_with_an_unknown_name_is_refused(app: App) -> None:
    def local() -> None: ...

    def below(x: Annotated[str, Depends(not_there_yet)]) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def inside(x: Annotated[str, Depends(local)]) -> None: ...

    assert "cannot be resolved (not_there_yet)" in refused(app, below)
    assert "at the top level of the module" in refused(app, inside)


def test_an_unresolved_annotation_is_an_argument_until_the_app_is_checked(
    app: App,
) -> None:
    @app.task
    def task(x: Elsewhere, y: "1 / 0") -> None: ...  # type: ignore[valid-type]  # noqa: UP037

    assert task.arguments.names == ("x", "y")
    with pytest.raises(InvalidTask, match="cannot be resolved"):
        app.check()


Later: Any


def test_app_check_refuses_a_depends_that_could_not_be_seen_when_the_task_was_defined(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app would otherwise treat the dependency as an argument that producers must pass."""

    def below(x: Later) -> None: ...  # type: ignore[valid-type]  # noqa: F821
    def buried(x: Annotated[str, Depends(plain)] | None) -> None: ...

    app.task(below)
    monkeypatch.setitem(globals(), "Later", Annotated[str, Depends(plain)])
    with pytest.raises(InvalidTask, match="the Depends of its parameter x was not seen"):
        app.check()
    other = App()
    other.task(buried)
    with pytest.raises(InvalidTask, match="let Annotated be the outermost"):
        other.check()


@dataclass
class Repository:
    """A class whose parameters are dependencies."""

    name: Annotated[str, Depends(plain)]
    size: int = 3


def test_a_class_that_is_a_provider_receives_its_own_dependencies(app: App) -> None:
    @app.task
    def task(repository: Annotated[Repository, Depends(Repository)]) -> None:
        seen.append(repository)

    assert ran(app, task) == ["succeeded"]
    assert seen == [Repository("plain")]


def test_a_bound_method_can_be_a_provider(app: App) -> None:
    class Factory:
        def session(self) -> Iterator[str]:
            seen.append("made")
            yield "session"

    factory = Factory()

    @app.task
    def task(a: str = Depends(factory.session), b: str = Depends(factory.session)) -> None:
        assert a == b == "session"

    assert ran(app, task) == ["succeeded"]
    assert seen == ["made"]


variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_only_the_handler_itself_sees_context_variables_that_its_dependency_sets(app: App) -> None:
    def sets() -> Iterator[None]:
        token = variable.set("set")
        yield
        variable.reset(token)

    async def sets_async() -> AsyncIterator[None]:
        token = variable.set("set")
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0)
        variable.reset(token)

    @app.task
    def in_thread(a: None = Depends(sets)) -> None:
        seen.append(variable.get())

    @app.task
    async def on_loop(a: None = Depends(sets_async), b: None = Depends(sets)) -> None:
        seen.append(variable.get())

    @app.task
    def other() -> None:
        seen.append(variable.get())

    assert ran(app, in_thread, other, on_loop, other) == ["succeeded"] * 4
    assert seen == ["set", "unset", "set", "unset"]


def test_the_hook_of_a_dead_job_has_its_own_dependencies(app: App) -> None:
    def mourn(job: DeadJob, db: str = Depends(plain)) -> None:
        seen.append((job.id, db))

    async def mourn_async(job: DeadJob, *, db: Annotated[str, Depends(async_generator)]) -> None:
        seen.append((job.id, db))

    def broken(job: DeadJob, db: str = Depends(async_generator)) -> None: ...
    def task() -> None: ...

    app.task(on_dead=mourn, name="one")(task)
    app.task(on_dead=mourn_async, name="two")(task)
    dead = DeadJob("j", "q", "t", {}, "poison", 1, 0, 1, 0, "1-1")
    with testing.fake(app) as fake:
        app.tasks["one:on_dead"].enqueue(dead)
        app.tasks["two:on_dead"].enqueue(dead)
        assert [run.outcome for run in fake.drain()] == ["succeeded", "succeeded"]
    assert seen == [
        ("j", "plain"),
        "+async_generator",
        ("j", "async_generator"),
        "-async_generator",
    ]
    with pytest.raises(InvalidTask, match="is async"):
        app.task(on_dead=broken, name="three")(task)


# Direct calls.


async def test_a_direct_call_creates_and_exits_its_dependencies(app: App) -> None:
    @app.task
    def in_thread(n: int, thing: str = Depends(managed, scope="process")) -> tuple[int, str]:
        return n, thing

    @app.task
    async def on_loop(n: int, thing: str = Depends(async_managed)) -> tuple[int, str]:
        seen.append("called")
        return n, thing

    assert in_thread(1) == (1, "generator")
    assert await on_loop(n=2) == (2, "async_generator")
    assert seen == ["+generator", "-generator", "+async_generator", "called", "-async_generator"]


async def test_a_direct_call_does_not_create_a_dependency_that_is_passed(app: App) -> None:
    @app.task
    def in_thread(n: int, thing: str = Depends(generator)) -> str:
        return thing

    @app.task
    async def on_loop(thing: Annotated[str, Depends(generator)]) -> str:
        return thing

    assert in_thread(1, "mine") == in_thread(1, thing="mine") == await on_loop("mine") == "mine"
    assert seen == []
    with pytest.raises(TypeError):
        in_thread()  # type: ignore[call-arg]


# Overrides.


def test_an_override_applies_only_in_its_block(app: App) -> None:
    @app.task
    async def task(thing: str = Depends(async_generator, scope="process")) -> None:
        seen.append(thing)

    with app.override(async_generator, lambda: "fake"):
        assert ran(app, task) == ["succeeded"]
        with app.override(async_generator, generator):
            assert ran(app, task) == ["succeeded"]
        assert asyncio.run(_result(task)) is None
    assert ran(app, task) == ["succeeded"]
    assert [each for each in seen if each[0] not in "+-"] == [
        "fake",
        "generator",
        "fake",
        "async_generator",
    ]


async def _result(task: Any) -> Any:
    return await task()


def test_an_override_reaches_dependencies_of_dependencies(app: App) -> None:
    def session(pool: Annotated[str, Depends(plain)]) -> str:
        return f"session of {pool}"

    @app.task
    def task(thing: str = Depends(session)) -> None:
        seen.append(thing)

    with app.override(plain, lambda: "fake"):
        assert ran(app, task) == ["succeeded"]
    assert seen == ["session of fake"]


def test_an_override_ends_though_its_block_raises(app: App) -> None:
    @app.task
    def task(thing: str = Depends(plain)) -> str:
        return thing

    with contextlib.suppress(KeyError), app.override(plain, lambda: "fake"):
        raise KeyError
    assert task() == "plain"


def test_overrides_that_end_out_of_order_are_all_removed(app: App) -> None:
    @app.task
    def task(thing: str = Depends(plain)) -> str:
        return thing

    first, second = app.override(plain, lambda: "first"), app.override(plain, lambda: "second")
    first.__enter__()
    second.__enter__()
    assert task() == "second"
    first.__exit__(None, None, None)
    assert task() == "second"
    second.__exit__(None, None, None)
    assert task() == "plain"


def test_an_override_that_a_task_cannot_use_is_refused_and_changes_nothing(app: App) -> None:
    @app.task
    def task(thing: str = Depends(plain)) -> str:
        return thing

    def wraps(thing: Annotated[str, Depends(plain)]) -> str:
        return thing

    for other, words in ((awaited, "is async"), (wraps, "form a cycle")):
        with pytest.raises(InvalidTask, match=words), app.override(plain, other):
            pytest.fail("the block is not entered")
    with pytest.raises(InvalidOption), app.override(plain, "fake"):  # type: ignore[arg-type]
        pytest.fail("the block is not entered")
    assert task() == "plain"


# Arounds.


def test_middleware_wraps_every_handler_with_its_dependencies_and_the_first_is_outermost(
    app: App,
) -> None:
    @app.around
    @contextmanager
    def outer(job: Any) -> Iterator[None]:
        seen.append(("outer", job.task, current_job() is job, threading.current_thread().name))
        yield
        seen.append("-outer")

    @app.task
    def in_thread(thing: str = Depends(generator)) -> None: ...

    @app.task
    async def on_loop() -> None: ...

    @app.around
    class Inner:
        def __init__(self, job: Any) -> None:
            pass

        def __enter__(self) -> None:
            seen.append("+inner")

        def __exit__(self, *error: object) -> None:
            seen.append("-inner")

    assert ran(app, in_thread, on_loop) == ["succeeded", "succeeded"]
    assert seen == [
        ("outer", "in_thread", True, "rq-core-job-0"),
        "+inner", "+generator", "-generator", "-inner", "-outer",
        ("outer", "on_loop", True, threading.current_thread().name),
        "+inner", "-inner", "-outer",
    ]  # fmt: skip


def test_async_middleware_is_refused_in_an_app_with_def_tasks(app: App) -> None:
    async def traced(job: Any) -> AsyncIterator[None]:
        yield

    @app.task
    async def on_loop() -> None: ...

    app.around(traced)
    assert ran(app, on_loop) == ["succeeded"]

    def in_thread() -> None: ...

    assert "the around test_async_middleware_is_refused" in refused(app, in_thread)
    with pytest.raises(InvalidTask, match="it is a `def` function"):
        other = App()
        other.task(in_thread)
        other.around(traced)
    assert other.surroundings.arounds == []


def test_invalid_middleware_is_refused(app: App) -> None:
    def nothing() -> None: ...
    def two(job: Any, more: Any) -> None: ...
    def wants(job: Any, db: str = Depends(plain)) -> None: ...
    async def coroutine(job: Any) -> None: ...
    def forgets(job: Any) -> None: ...

    for function, words in (
        (nothing, "must take one argument, the job"),
        (two, "must take one argument, the job"),
        (wants, "gets no dependencies"),
        (coroutine, "must yield once"),
        (forgets, "must yield once, around the handler: it is a plain function"),
    ):
        with pytest.raises(InvalidOption, match=words):
            app.around(function)


def test_middleware_that_returns_no_context_manager_fails_the_attempt(app: App) -> None:
    class Forgets:
        def __call__(self, job: Any) -> None:
            """Return None, which is not a context manager."""

    app.around(Forgets())

    @app.task
    def task() -> None: ...

    assert ran(app, task) == ["UsageError: it gives no context manager but NoneType"]


async def test_a_direct_call_runs_no_middleware(app: App) -> None:
    @app.around
    def around(job: Any) -> Iterator[None]:
        seen.append("around")
        yield

    @app.task
    def task(thing: str = Depends(plain)) -> str:
        return thing

    assert task() == "plain"
    assert seen == []
