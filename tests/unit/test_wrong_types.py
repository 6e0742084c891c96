"""Arguments of public functions and classes. A wrong type is refused, and the error says which type is right."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import rq_core
from rq_core import (
    App,
    Batch,
    Breaker,
    Cap,
    Debounce,
    Filter,
    Latest,
    Patience,
    Rate,
    RetryPolicy,
    RqCoreError,
    Throttle,
    Unique,
    UsageError,
)
from rq_core.worker import WorkerOptions

Given = dict[str, Any]
NOTHING_LISTENS = "redis://127.0.0.1:1/0"


def app() -> App:
    made = App(NOTHING_LISTENS)

    @made.task(queue="mail", caps=[Cap(5, per="to")])
    def send(to: str) -> None: ...

    return made


def decorated(**options: Any) -> Any:
    return app().task(**options)(lambda to: None)


def with_options(**options: Any) -> Any:
    return app().tasks["send"].with_options(**options)


CALLS: dict[str, tuple[Callable[..., Any], Given]] = {
    "App": (App, {}),
    "App.task": (decorated, {"name": "t"}),
    "App.queue": (lambda **g: app().queue(**g), {"name": "mail"}),
    "App.around": (lambda function: app().around(function), {}),
    "App.outgoing": (lambda function: app().outgoing(function), {}),
    "App.handle_by_id": (lambda **g: app().handle_by_id(**g), {"queue": "mail", "job_id": "a"}),
    "App.job": (lambda **g: app().job(**g), {"queue": "mail", "task": "send", "args": {"to": "a"}}),
    "App.enqueue": (lambda **g: app().enqueue(**g), {"queue": "mail", "task": "send", "args": {"to": "a"}}),
    "App.enqueue_many": (lambda **g: app().enqueue_many(**g), {}),
    "App.as_completed": (lambda **g: app().as_completed(**g), {"handles": [], "timeout": 1}),
    "App.connect_to": (lambda **g: app().connect_to(**g), {}),
    "App.set_cap": (lambda **g: app().set_cap(**g), {"queue": "mail", "scope": "send.to", "limit": 1}),
    "App.pause_scope": (lambda **g: app().pause_scope(**g), {"queue": "mail", "scope": "send@1s=", "after": 1}),
    "App.resume_scope": (lambda **g: app().resume_scope(**g), {"queue": "mail", "scope": "send@1s="}),
    "App.caps": (lambda **g: app().caps(**g), {"queue": "mail"}),
    "App.signal": (
        lambda **g: app().signal(app().handle_by_id("mail", "a"), **g),
        {"name": "approval"},
    ),
    **{
        f"App.{verb}_schedule": (
            lambda verb=verb, **g: getattr(app(), f"{verb}_schedule")(**g),
            {"queue": "mail", "name": "nightly"},
        )
        for verb in ("pause", "resume", "remove", "release", "run")
    },
    "App.cancel_where": (lambda which: app().cancel_where(which), {}),
    "App.requeue_where": (lambda which: app().requeue_where(which), {}),
    "App.edit_where": (lambda which: app().edit_where(which, now=True), {}),
    "App.prune_where": (lambda which: app().prune_where(which), {}),
    "App.copy": (lambda **g: app().copy(**g), {"job_id": "a", "queue": "mail"}),
    "App.fork": (lambda **g: app().fork(**g), {"job_id": "a", "queue": "mail"}),
    "App.replay": (lambda **g: app().replay(g.pop("which"), **g), {"which": Filter(queue="mail")}),
    "Filter": (Filter, {"queue": "mail"}),
    "Task.with_options": (with_options, {}),
    "Batch": (Batch, {"size": 5}),
    "Cap": (Cap, {"n": 1}),
    "Breaker": (Breaker, {"failures": 3, "per_seconds": 60, "cooldown": 30}),
    "Unique": (Unique, {}),
    "Throttle": (Throttle, {"seconds": 1}),
    "Debounce": (Debounce, {"seconds": 1}),
    "Latest": (Latest, {"per": "to"}),
    "Rate": (Rate, {"n": 1, "per_seconds": 1}),
    "RetryPolicy": (RetryPolicy, {}),
    "WorkerOptions": (WorkerOptions, {}),
}  # fmt: skip

LIKE: dict[str, Any] = {
    "App.task": App.task, "App.queue": App.queue, "App.around": App.around, "App.outgoing": App.outgoing,
    "App.job": App.job,
    "App.handle_by_id": App.handle_by_id, "App.enqueue": App.enqueue, "App.enqueue_many": App.enqueue_many,
    "App.as_completed": App.as_completed, "App.connect_to": App.connect_to, "App.set_cap": App.set_cap,
    **{f"App.{v}_schedule": getattr(App, f"{v}_schedule") for v in ("pause", "resume", "remove", "release", "run")},
    "App.pause_scope": App.pause_scope, "App.resume_scope": App.resume_scope,
    "App.caps": App.caps, "App.copy": App.copy, "App.fork": App.fork, "App.replay": App.replay,
    "Task.with_options": rq_core.Task.with_options,
}  # fmt: skip
"""The public callable of a call in CALLS, by the name of the call. Its signature says which parameters are tested. For
a call that is not here, the signature of the function in CALLS says so."""
NOT_CHECKED = {
    "App.connections": "a test's own", "App.task.function": "tested beside the task",
    "App.enqueue_many.jobs": "tested with the chunks",
    "App.as_completed.allow_in_handler": "true or not, whatever it is",
    "App.replay.dry_run": "true or not, whatever it is",
    "App.replay.progress": "called after the first page",
}  # fmt: skip
OF_AN_APP_ELSEWHERE = {
    "handle": "takes what rq-core made", "apply_settings": "takes nothing", "check": "takes nothing",
    "declaration": "a worker's own", "declare_schedules": "a worker's own", "spec_max_in": "a worker's own",
    "schedule": "tested in tests/unit/test_schedules.py", "scheduled": "tested in tests/unit/test_schedules.py",
    "schedule_many": "tested in tests/unit/test_schedules.py",
    "within": "tested in tests/inbox", "wake_relay": "takes nothing",
    "close": "takes nothing", "aclose": "takes nothing",
    "async_client": "takes nothing",
    "flow": "tested in tests/flows/test_declared.py", "enable_flows": "as flow",
    "new_job": "rq-core's own", "returned_of": "rq-core's own", "override": "tested in tests/unit/test_depends.py",
}  # fmt: skip
NO_CALLABLES_OF_USERS = {
    "AsyncTask", "PreparedTask", "Task", "JobContext", "JobHandle", "DeadJob", "NewJob", "ScopeStatus", "Priority",
    "State", "Outgoing", "JobLogFilter", "current_job", "injected", "Depends", "Limit", "Patience",
    "Chunk", "Progress", "JobCall", "Item", "Items", "Flow", "FlowNode", "FlowRun", "Group", "NodeState", "RESULT",
    "chain", "group",
    "Durable", "DurableSync", "durable", "durable_sync", "NOT_DONE", "BatchContext", "Job",
    "JobsChanged", "Replayed", "Outcome", "Succeeded", "Failed", "Cancelled", "Expired", "Replaced", "Gone",
}  # fmt: skip
"""Public names that this file does not test. Users do not create some of these objects, and others take no arguments.
Limit and Patience are checked by the callable that receives them. The rest is tested in test_depends.py,
test_context.py, test_durable_steps.py, test_children.py, test_batches.py and tests/flows/test_declared.py."""


def parameters() -> Iterator[tuple[str, str]]:
    for name, (function, _) in CALLS.items():
        of = inspect.signature(LIKE.get(name, function)).parameters
        for parameter in of.values():
            if parameter.name != "self" and f"{name}.{parameter.name}" not in NOT_CHECKED:
                kind = parameter.kind
                if kind is not inspect.Parameter.VAR_KEYWORD:
                    yield name, parameter.name


@pytest.mark.parametrize("value", [object(), b"x", 1j], ids=["object", "bytes", "complex"])
@pytest.mark.parametrize("name, parameter", list(parameters()))
def test_a_public_function_refuses_an_argument_of_a_wrong_type(
    name: str, parameter: str, value: Any
) -> None:
    function, given = CALLS[name]

    with pytest.raises((UsageError, TypeError)) as caught:
        function(**{**given, parameter: value})

    assert len(str(caught.value)) > 20


SAID: list[tuple[Callable[[], Any], str]] = [
    (lambda: decorated(name="t", retry=5), "retry=5 is not valid: must be a RetryPolicy, like RetryPolicy("),
    (lambda: decorated(name="t", retry="x"), "must be a RetryPolicy"),
    (lambda: decorated(name="t", on_dead="x"), "on_dead='x' is not valid: must be a function that takes a DeadJob"),
    (lambda: App(redis=5), "redis=5 is not valid: must be a URL, like redis://localhost:6379/0"),  # type: ignore[arg-type]
    (lambda: App(audit=5), "audit=5 is not valid: must be a URL"),  # type: ignore[arg-type]
    (lambda: App(ids="x"), "ids='x' is not valid: must be a function"),  # type: ignore[arg-type]
    (lambda: App(redact=5), "redact=5 is not valid"),  # type: ignore[arg-type]
    (lambda: App(patience=5), "patience=5 is not valid: must be a Patience, like Patience(unsent=3.0, unknown=600.0)"),  # type: ignore[arg-type]
    (lambda: App(patience=Patience(unsent="x")), "unsent='x' is not valid: must be seconds"),  # type: ignore[arg-type]
    (lambda: App(patience=Patience(unknown=-1)), "unknown=-1 is not valid: must be seconds"),
    (lambda: app().set_cap("q", 5, 1), "scope=5 is not valid: must be text"),  # type: ignore[arg-type]
    (lambda: app().set_cap("mail", "send.to", 1, version=-1), "version=-1 is not valid: must be a whole number from 0"),
    (lambda: app().set_cap("mail", "send.to", 1, version=True), "version=True is not valid"),
    (lambda: app().set_cap("mail", "send.to", 1, by=5), "actor name 5 is not valid"),  # type: ignore[arg-type]
    (lambda: app().caps("mail", limit=0), "limit=0 is not valid: must be a whole number from 1"),
    (lambda: app().queue("mail", lease=0), "lease=0 is not valid: must be seconds (or a timedelta) from 0.2"),
    (lambda: app().queue("mail", lease=timedelta(0)), "must be seconds (or a timedelta) from 0.2"),
    (lambda: app().queue("mail", lease="9"), "must be seconds"),  # type: ignore[arg-type]
    (lambda: WorkerOptions(queues="mail"), "queues='mail' is not valid: must be a list of names, like ('mail',)"),  # type: ignore[arg-type]
    (lambda: WorkerOptions(concurrency=True), "concurrency=True is not valid"),
    (lambda: WorkerOptions(weights=[1]), "weights=[1] is not valid"),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("call, says", SAID, ids=[says[:40] for _, says in SAID])
def test_the_error_of_a_wrong_type_says_what_to_write(call: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()

    assert says in str(caught.value)


def test_every_public_callable_is_tested_with_wrong_types() -> None:
    errors = {
        n
        for n in rq_core.__all__
        if inspect.isclass(k := getattr(rq_core, n)) and issubclass(k, RqCoreError)
    }
    tried = {name.partition(".")[0] for name in CALLS}
    assert set(rq_core.__all__) - errors <= tried | NO_CALLABLES_OF_USERS
    methods = {
        name.removesuffix("_async")
        for name, value in inspect.getmembers(App, inspect.isfunction)
        if not name.startswith("_")
    }
    assert methods <= {n.partition(".")[2] for n in CALLS} | OF_AN_APP_ELSEWHERE.keys()
