"""Apps and tasks. Invalid definitions are refused at once, and jobs have the right fields. No test here needs a
server."""

from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import rq_core
from rq_core import (
    App,
    ArgumentsInvalid,
    Cap,
    InvalidName,
    InvalidOption,
    InvalidTask,
    NewJob,
    PayloadTooLarge,
    PreparedTask,
    RetryPolicy,
    RqCoreError,
)
from rq_core.model.job import read_spec
from rq_core.protocol.calls.enqueue import pack_jobs


@pytest.fixture
def app() -> Iterator[App]:
    with App("redis://nowhere.invalid") as made:
        yield made


def add(a: int, b: int = 2) -> int:
    return a + b


async def add_later(a: int, b: int = 2) -> int:
    await asyncio.sleep(0)
    return a + b


def spec_of(job: NewJob) -> tuple[object, ...]:
    return tuple(read_spec(pack_jobs([job])[1][0][-1]))[:3]


def test_a_task_can_be_called_like_its_function(app: App) -> None:
    task = app.task(add)

    assert task(1, b=3) == 4
    assert task.__name__ == "add"
    assert task.__wrapped__ is add
    assert not task.is_async


async def test_an_async_task_is_awaited(app: App) -> None:
    task = app.task(queue="slow")(add_later)

    assert await task(1) == 3
    assert task.is_async


async def test_an_object_with_an_async_call_is_an_async_task(app: App) -> None:
    class Adder:
        async def __call__(self, a: int) -> int:
            return a

    task = app.task(name="adder")(Adder())

    assert task.is_async
    assert await task(5) == 5


def test_the_app_knows_its_tasks_by_name(app: App) -> None:
    one, two = app.task(add), app.task(name="other")(add)

    assert dict(app.tasks) == {"add": one, "other": two}
    with pytest.raises(TypeError):
        app.tasks["add"] = two  # type: ignore[index]


def yields() -> Iterator[int]:
    yield 1


async def yields_later() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda app: app.task(add), InvalidTask, "a task of that name"),
        (lambda app: app.task(lambda: None), InvalidTask, "pass name="),
        (lambda app: app.task(yields), InvalidTask, "it is a generator"),
        (lambda app: app.task(yields_later), InvalidTask, "it is a generator"),
        (lambda app: app.task(name="a b")(yields), InvalidName, "task name 'a b'"),
        (lambda app: app.task(queue="a{b}"), InvalidName, "queue name"),
        (lambda app: app.task(queue=None), InvalidName, "queue name None"),
        (lambda app: app.task("mail"), InvalidOption, "options go by name"),
        (lambda app: app.task(timeout=0)(yields), InvalidOption, "^timeout=0 "),
        (lambda app: app.task(timeout="1m"), InvalidOption, "^timeout='1m' "),
        (lambda app: app.task(priority="urgent", name="x")(add), InvalidOption, "critical, high"),
        (lambda app: app.task(max_losses=0, name="x")(add), InvalidOption, "^max_losses=0 "),
        (lambda app: app.task(max_losses=True, name="x")(add), InvalidOption, "^max_losses=True "),
    ],
)
def test_a_function_that_cannot_be_a_task_is_refused_where_it_is_defined(
    app: App, make: Callable[[App], object], kind: type[RqCoreError], words: str
) -> None:
    app.task(add)

    with pytest.raises(kind, match=words):
        make(app)

    assert list(app.tasks) == ["add"]


def test_a_job_carries_the_tasks_options(app: App) -> None:
    task = app.task(queue="math", priority="high", max_losses=7, retry=RetryPolicy(max_attempts=9))(
        add
    )

    job = task.job(1, b=5)

    assert (job.queue, job.delay_ms, job.args_json) == ("math", 0, '{"a":1,"b":5}')
    assert job.profile.head == "task=add priority=high attempts=9 losses=7"
    assert spec_of(job) == ("add", '{"a":1,"b":5}', None)


def test_options_of_a_job_override_those_of_its_task(app: App) -> None:
    task = app.task(queue="math", timeout=30)(add)
    prepared = task.with_options(
        queue="other",
        delay=timedelta(minutes=1),
        priority="low",
        max_attempts=1,
        max_losses=1,
        timeout=2.5,
        id="my-id",
    )

    job = prepared.job(1)

    assert (job.id, job.queue, job.delay_ms) == ("my-id", "other", 60_000)
    assert job.profile.head == "task=add priority=low attempts=1 losses=1"
    assert spec_of(job) == ("add", '{"a":1}', 2_500)
    assert task.job(1).queue == "math"


def test_repeated_calls_of_with_options_combine_their_options(app: App) -> None:
    job = app.task(add).with_options(delay=1).with_options(priority="high").job(1)

    assert (job.delay_ms, job.profile.priority) == (1_000, "high")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"delay": -1}, InvalidOption),
        ({"delay": "soon"}, InvalidOption),
        ({"priority": "urgent"}, InvalidOption),
        ({"priority": ["high"]}, InvalidOption),
        ({"max_attempts": 0}, InvalidOption),
        ({"max_attempts": 1.5}, InvalidOption),
        ({"max_attempts": []}, InvalidOption),
        ({"timeout": 0}, InvalidOption),
        ({"id": "a b"}, InvalidName),
        ({"id": ""}, InvalidName),
        ({"id": 5}, InvalidName),
        ({"queue": "a b"}, InvalidName),
        ({"queue": b"mail"}, InvalidName),
    ],
)
def test_invalid_options_are_refused_by_tasks_and_by_name(
    app: App, options: dict[str, Any], kind: type[RqCoreError]
) -> None:
    task = app.task(add)

    with pytest.raises(kind):
        task.with_options(**options)
    with pytest.raises(kind):
        app.job(**{"queue": "q", "task": "elsewhere", "args": {}, **options})


TAKES_OPTIONS = [
    App.job, App.job_async, App.enqueue, App.enqueue_async, PreparedTask.with_options,
]  # fmt: skip


@pytest.mark.parametrize("function", TAKES_OPTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("option", ["dely", "delay_ms"])
async def test_the_error_of_an_unknown_option_lists_the_options(
    app: App, function: Callable[..., Any], option: str
) -> None:
    call: tuple[Any, ...] = (app, "math", "add", {"a": 1})
    if function is PreparedTask.with_options:
        call = (app.task(add),)

    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'.* delay, "):
        made = function(*call, **{option: 1})
        await made


@pytest.mark.parametrize("function", TAKES_OPTIONS, ids=lambda function: function.__name__)
def test_signatures_and_docstrings_show_every_option(function: Callable[..., Any]) -> None:
    told = inspect.signature(function).parameters

    assert {"delay", "priority", "max_attempts", "max_losses", "timeout", "id"} <= set(told)
    assert "options" not in told
    assert (told["delay"].annotation, told["delay"].default) == ("Duration | None", None)
    assert "``timeout`` how long one attempt may take" in (inspect.getdoc(function) or "")


def test_a_payload_above_the_limit_is_refused() -> None:
    app = App("redis://nowhere.invalid", max_payload=20)

    @app.task
    def echo(text: str) -> None: ...

    room = 20 - len('{"text":""}')
    assert echo.job("x" * room)
    assert echo.job("é" * (room // 2))
    for text in ("x" * (room + 1), "é" * (room // 2 + 1)):
        with pytest.raises(PayloadTooLarge) as caught:
            echo.job(text)
        assert caught.value.facts["limit"] == 20


def test_enqueue_by_name_validates_the_arguments_if_the_app_has_the_task(app: App) -> None:
    app.task(queue="math", priority="low")(add)

    with pytest.raises(ArgumentsInvalid, match="a: is required"):
        app.job("math", "add", {})
    job = app.job("other", "add", {"a": 1})

    assert (job.queue, job.profile.priority) == ("other", "low")


def test_a_job_with_the_option_at_carries_the_instant_and_not_a_delay(app: App) -> None:
    """A delay would depend on the producer's clock."""
    task = app.task(add)
    at = datetime(2030, 1, 1, tzinfo=UTC)
    due_ms = 1_893_456_000_000

    def times(prepared: PreparedTask[Any, Any]) -> tuple[int, int]:
        job = prepared.job(1)
        return job.delay_ms, job.due_ms

    assert times(task.with_options(at=at)) == (0, due_ms)
    assert times(task.with_options(at=at).with_options(priority="high")) == (0, due_ms)
    assert times(task.with_options(at=at).with_options(delay=5)) == (5_000, 0)
    assert times(task.with_options(delay=5).with_options(at=at)) == (0, due_ms)
    assert app.job("default", "add", {"a": 1}, at=at).due_ms == due_ms
    with pytest.raises(InvalidOption, match="does not go with delay"):
        task.with_options(at=at, delay=5)
    with pytest.raises(InvalidOption, match="must have a time zone"):
        task.with_options(at=at.replace(tzinfo=None))


def test_a_task_with_a_cap_that_discards_or_rejects_refuses_the_option_at(app: App) -> None:
    task = app.task(caps=[Cap(1, on_full="discard")])(add)

    with pytest.raises(InvalidOption, match=r"^at=.*does not go with caps"):
        task.with_options(at=datetime(2030, 1, 1, tzinfo=UTC))


def test_enqueue_by_name_needs_no_code(app: App) -> None:
    app.connections.policies.put(app.declared.unregistered("elsewhere", "q"))

    job = app.job("q", "elsewhere", {"when": timedelta(1)}, timeout=1, id="x")

    assert (job.id, job.profile.task) == ("x", "elsewhere")
    assert spec_of(job) == ("elsewhere", '{"when":"P1D"}', 1_000)


@pytest.mark.parametrize("task", ["a b", "", None, 5])
def test_enqueue_by_name_refuses_an_invalid_task_name(app: App, task: Any) -> None:
    with pytest.raises(InvalidName, match="task name"):
        app.job("q", task, {})


def test_an_app_creates_ids_with_the_function_that_it_was_given() -> None:
    app = App("redis://nowhere.invalid", ids=iter(["one", "two"]).__next__)
    task = app.task(add)

    assert [task.job(1).id, task.job(1).id] == ["one", "two"]


def test_urls_come_from_arguments_then_from_the_environment_then_from_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RQ_CORE_REDIS_URL", "RQ_CORE_AUDIT_URL"):
        monkeypatch.delenv(name, raising=False)
    assert (App().redis_url, App().audit_url) == ("redis://localhost:6379/0", None)
    monkeypatch.setenv("RQ_CORE_REDIS_URL", "redis://of-environment")
    monkeypatch.setenv("RQ_CORE_AUDIT_URL", "sqlite:///of-environment")
    assert App().redis_url == "redis://of-environment"
    assert App().audit_url == "sqlite:///of-environment"
    given = App("redis://given", "sqlite:///given")
    assert (given.redis_url, given.audit_url) == ("redis://given", "sqlite:///given")


@pytest.mark.parametrize(
    "options", [{"prefix": "a:{b}"}, {"max_payload": 0}, {"max_payload": "1M"}]
)
def test_an_app_refuses_invalid_options(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidName, InvalidOption)):
        App(**options)


def test_an_invalid_url_is_refused_when_it_is_used() -> None:
    with pytest.raises(InvalidOption, match="must begin with redis://"):
        App("http://localhost").client  # noqa: B018 - made on first access


def test_settings_that_an_app_declares_are_converted_to_milliseconds(app: App) -> None:
    app.queue("mail", lease=5)
    app.queue("mail", dead_retention=timedelta(days=1))

    assert dict(app.settings) == {"mail": {"lease_ms": 5_000, "dead_retention_ms": 86_400_000}}


@pytest.mark.parametrize(
    ("name", "options"), [("a b", {}), ("mail", {"lease": 0.1}), ("mail", {"dead_retention": -1})]
)
def test_invalid_settings_are_refused(app: App, name: str, options: dict[str, Any]) -> None:
    with pytest.raises((InvalidName, InvalidOption)):
        app.queue(name, **options)


class Mailer:
    """A class whose method is declared as a task. A worker could not make the instance that the method needs."""

    def send(self, to: str) -> None: ...

    @classmethod
    def send_all(cls) -> None: ...

    @staticmethod
    def post(to: str) -> None: ...


def test_a_method_is_refused_as_a_task_when_it_is_defined(app: App) -> None:
    for method in (Mailer.send, vars(Mailer)["send_all"]):
        with pytest.raises(InvalidTask, match="it is a method"):
            app.task(name="mail")(method)

    assert app.task(Mailer.post).name == "post"


@pytest.mark.parametrize(
    ("made", "given", "meant"),
    [
        ("task", "retries", "retry=RetryPolicy(max_attempts=…), which counts the first run, too"),
        ("task", "autoretry_for", "retry=RetryPolicy(retry_on=…)"),
        ("task", "time_limit", "timeout=…"),
        ("task", "result_ttl", "keep_result=…"),
        ("policy", "max_retries", "max_attempts=…, which counts the first run, too"),
        ("policy", "default_retry_delay", "base=…"),
        ("policy", "autoretry_for", "retry_on=…"),
        ("job", "countdown", "delay=…"),
        ("job", "eta", "at=…"),
        ("job", "task_id", "id=…"),
        ("job", "retries", "max_attempts=…, which counts the first run, too"),
        ("by name", "countdown", "delay=…"),
        ("task", "bogus", ""),
        ("policy", "bogus", ""),
        ("job", "bogus", ""),
    ],
)
def test_the_error_of_a_mistyped_option_suggests_an_option_and_lists_all(
    app: App, made: str, given: str, meant: str
) -> None:
    takes: dict[str, tuple[Callable[..., Any], str]] = {
        "task": (app.task, "queue, name, retry"),
        "policy": (RetryPolicy, "max_attempts, backoff, base"),
        "job": (app.task(Mailer.post).with_options, "delay, at, expires"),
        "by name": (functools.partial(app.enqueue, "mail", "send"), "delay, at, expires"),
    }
    take, known = takes[made]

    with pytest.raises(TypeError) as caught:
        take(**{given: 3})

    hint = f" (write {meant})" if meant else ""
    assert f"got an unexpected keyword argument {given!r}{hint}: " in str(caught.value)
    assert f"options are {known}" in str(caught.value)


@pytest.mark.parametrize(("name", "hint"), [("delay", "enqueue"), ("apply_async", "with_options")])
def test_a_method_name_of_another_library_raises_an_error_with_the_right_name(
    app: App, name: str, hint: str
) -> None:
    task = app.task(Mailer.post)

    for each in (task, task.with_options(delay=1)):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}': {hint}"):
            getattr(each, name)
    assert not hasattr(task, "other")


class Odd:
    pass


def test_app_check_refuses_annotations_that_cannot_be_used(app: App) -> None:
    """A worker calls `check` when it starts. So it fails then, and not at its first job."""

    @app.task
    def odd(value: Odd) -> None: ...

    with pytest.raises(InvalidTask, match="its argument value is a Odd"):
        app.check()


def imported_by(code: str) -> set[str]:
    report = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_rq_core_imports_only_its_errors_signals_and_masking() -> None:
    """The package also has the command line, and ``rq-core --help`` needs no App."""
    modules = imported_by("import rq_core")

    assert {"rq_core", "rq_core.errors", "rq_core.masking", "rq_core.signals"} == {
        name for name in modules if name.split(".")[0] == "rq_core"
    }
    assert not modules & {"inspect", "dataclasses", "datetime", "json", "logging"}


def test_defining_tasks_imports_no_heavy_module() -> None:
    """Web apps and command lines import tasks, even if they enqueue no job."""
    modules = imported_by("from rq_core import App; app = App(); app.task(name='t')(lambda a: a)")

    assert "rq_core.app.task" in modules
    assert not modules & {"pydantic", "redis", "asyncio", "sqlalchemy", "fakeredis", "sql_audit"}
    assert not modules & {
        "click", "decimal", "difflib", "email", "hashlib", "http", "importlib.metadata", "logging", "platform",
        "rq_core.app.handlers.dead_hooks", "rq_core.protocol.operations", "socket", "ssl", "subprocess", "uuid",
    }  # fmt: skip


def test_public_names_are_listed_before_they_are_imported() -> None:
    """dir() and ``import *`` know every public name. Any other name raises an error."""
    found = {}
    exec("from rq_core import *", found)  # noqa: S102 - it is only allowed at a module's top

    assert set(rq_core.__all__) <= found.keys()
    assert set(rq_core.__all__) <= set(dir(rq_core))
    with pytest.raises(AttributeError, match="module 'rq_core' has no attribute 'Ap'"):
        rq_core.Ap  # noqa: B018 - looking is what raises


def test_rq_core_exports_exactly_the_expected_public_names() -> None:
    """Each new name is a promise, and a removed name breaks users' code."""
    assert sorted(rq_core.__all__) == [
        "App", "ArgumentsInvalid", "AsyncTask", "AuditBacklogFull", "AuditElsewhere", "AuditNotConfigured",
        "AuditOff", "AuditStampDiffers", "BadArguments", "Batch", "BatchContext", "Breaker", "Cancelled", "Cap",
        "CapConflict", "ChildrenFailed", "Chunk", "DeadJob", "Debounce", "Depends", "Durable", "DurableSync", "Expired",
        "Failed", "Filter",
        "Flow", "FlowNode", "FlowRun", "GiveUp", "Gone", "Group",
        "HandlerDied", "HandlerSignal", "HandlerTimeout", "IdempotencyMismatch",
        "InboxIdsUsed", "InboxMissing", "InvalidFlow",
        "InvalidName", "InvalidOption", "InvalidStep", "InvalidTask", "Item", "Items",
        "Job", "JobCall", "JobCancelled", "JobContext", "JobExpired", "JobFailed", "JobGone", "JobHandle",
        "JobLogFilter", "JobReplaced", "JobWasCancelled",
        "JobsChanged", "KeyFailed", "KeyNeeded", "Latest", "LayoutMismatch", "LeaseLost", "Limit", "LogBehind",
        "MemberFailed", "NOT_DONE", "NewJob", "NoCurrentJob", "NoResult", "NodeState",
        "NotCopied", "NotDurable", "NotEdited",
        "NotInTransaction", "NotSignalled", "NothingDeclared", "Outcome", "OutcomeUnknown", "Outgoing",
        "Patience", "PauseScope", "PayloadTooLarge", "PreparedTask", "Priority", "Progress", "QueueDamaged",
        "QueueFull", "QueueInUse",
        "RESULT", "Rate", "Refused", "Replaced", "Replayed", "RestoredMeanwhile", "ResultUnavailable",
        "ResultsFull", "RetryLater",
        "RetryPolicy", "RqCoreError", "ScopeFull", "ScopeStatus", "ServerError", "ServerUnavailable",
        "ServerUnsuitable", "Snooze", "StaleCall", "State", "StepMismatch", "StepTwice", "StepUnusable",
        "StepsSpent", "Succeeded", "TargetBroken", "Task", "Throttle", "Unique", "UniqueHeld", "UnknownQueue",
        "UnknownScope", "UnknownTask", "UsageError", "WaitRefused", "WaitTimeout", "WorkerStopping",
        "chain", "current_job", "durable", "durable_sync", "group", "injected",
    ]  # fmt: skip
    assert all(hasattr(rq_core, name) for name in rq_core.__all__)


def test_every_error_is_public() -> None:
    errors = {
        name
        for name, each in {**vars(rq_core.errors), **vars(rq_core.signals)}.items()
        if isinstance(each, type) and issubclass(each, RqCoreError)
    }

    assert errors <= set(rq_core.__all__)
