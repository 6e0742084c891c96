"""Functions of an app that add headers to jobs before they are sent. An enqueue without such a function costs no
more."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rq_core import App, GiveUp, InvalidOption, testing
from rq_core.app.handlers import outgoing
from rq_core.app.handlers.outgoing import Outgoing
from rq_core.model.headers import HEADERS_BYTES_MAX

app = App("redis://nowhere.invalid")
APP_DIRECTORY = str(Path(outgoing.__file__).parents[1])


@app.task(queue="mail")
def send(to: str) -> None:
    """Do nothing."""


@app.task(queue="mail")
def refuse() -> None:
    raise GiveUp("no such address")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Outgoing]:
    """Give the app a function for headers. Return the list of the function's calls.

    Each call adds a header with the number of the call.
    """
    calls: list[Outgoing] = []

    def note(call: Outgoing) -> Mapping[str, str]:
        calls.append(call)
        return {"call": str(len(calls))}

    monkeypatch.setattr(app, "outgoing_functions", [])
    app.outgoing(note)
    return calls


def python_calls(of: Callable[[], Any]) -> list[str]:
    """Return the names of all Python functions that ``of`` calls, in order."""
    called: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        of()
    finally:
        sys.setprofile(before)
    return called[1:]


def test_a_function_for_headers_adds_them_to_a_single_enqueue(seen: list[Outgoing]) -> None:
    with testing.fake(app) as jobs:
        send.with_options(headers={"request": "r-1"}, delay=5).enqueue("a@b.c")
        app.enqueue("mail", "send", {"to": "d@e.f"})
        found = {job.arguments["to"]: job for job in jobs.enqueued()}

    assert {"call": "1", "request": "r-1"} == found["a@b.c"].headers
    assert {"call": "2"} == found["d@e.f"].headers
    assert [("enqueue", "mail", "send", True), ("enqueue", "mail", "send", False)] == [
        (call.way, call.queue, call.task, call.is_delayed) for call in seen
    ]
    assert {"request": "r-1"} == seen[0].headers
    assert found["a@b.c"].id == seen[0].job_id


async def test_a_function_for_headers_is_called_once_for_many_jobs(seen: list[Outgoing]) -> None:
    async def made() -> AsyncIterator[Any]:
        yield send.job("g@h.i")

    with testing.fake(app) as jobs:
        app.enqueue_many(send.job(to) for to in ("a@b.c", "d@e.f"))
        await app.enqueue_many_async([send.job("j@k.l")])
        await app.enqueue_many_async(made())
        await send.enqueue_async("m@n.o")
        await app.enqueue_async("mail", "send", {"to": "p@q.r"})
        found = [job.headers["call"] for job in jobs.enqueued()]

    assert ["1", "1", "2", "3", "4", "5"] == found
    assert ["enqueue_many"] * 3 + ["enqueue"] * 2 == [call.way for call in seen]


def test_a_copied_job_has_the_added_headers_and_the_headers_of_its_original(
    seen: list[Outgoing],
) -> None:
    given = {"call": "old", "request": "r-1", "rq-core-trace": "first"}
    with testing.fake(app) as jobs:
        dead = refuse.with_options(headers=given).enqueue()
        jobs.drain()
        app.copy(dead.id, queue="mail")
        [copy] = jobs.enqueued()

    assert {"call": "2", "request": "r-1"} == copy.headers
    assert ["enqueue", "copy"] == [call.way for call in seen]


def test_a_function_for_headers_does_not_replace_the_callers_headers(seen: list[Outgoing]) -> None:
    with testing.fake(app) as jobs:
        send.with_options(headers={"call": "mine"}).enqueue("a@b.c")
        [found] = jobs.enqueued()

    assert {"call": "mine"} == found.headers


def test_the_longest_added_headers_are_dropped_if_the_total_is_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "outgoing_functions", [])
    app.outgoing(lambda _: {"long": "x" * 1_500, "own": "taken", "short": "y"})
    given = {"own": "z" * (HEADERS_BYTES_MAX // 2)}
    with testing.fake(app) as jobs:
        send.with_options(headers=given).enqueue("a@b.c")
        [found] = jobs.enqueued()

    assert given | {"short": "y"} == found.headers


def test_an_added_header_that_is_too_long_is_dropped_and_the_job_is_enqueued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The length may come from outside: a web request can have a header ``baggage`` of 8 KiB."""
    monkeypatch.setattr(app, "outgoing_functions", [])
    app.outgoing(lambda _: {"baggage": "é" * HEADERS_BYTES_MAX, "traceparent": "00-1-2-01"})
    with testing.fake(app) as jobs:
        send.enqueue("a@b.c")
        app.enqueue_many([send.job("d@e.f")])
        found = [job.headers for job in jobs.enqueued()]

    assert [{"traceparent": "00-1-2-01"}] * 2 == found


INVALID = [
    {"n": 1},
    {1: "n"},
    {"": "x"},
    ["x"],
    {"x": "\ud800"},
    {"x": "\ud800" * HEADERS_BYTES_MAX},
]


@pytest.mark.parametrize("added", INVALID)
def test_an_enqueue_with_invalid_added_headers_is_refused(
    monkeypatch: pytest.MonkeyPatch, added: Any
) -> None:
    monkeypatch.setattr(app, "outgoing_functions", [])
    app.outgoing(lambda _: added)
    with testing.fake(app) as jobs:
        with pytest.raises(InvalidOption):
            send.enqueue("a@b.c")
        assert [] == jobs.enqueued()


def test_an_exception_of_a_function_for_headers_reaches_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "outgoing_functions", [])

    @app.outgoing
    def raise_error(call: Outgoing) -> None:
        raise LookupError(call.task)

    with testing.fake(app) as jobs:
        with pytest.raises(LookupError, match="send"):
            send.enqueue("a@b.c")
        assert [] == jobs.enqueued()


@pytest.mark.parametrize("wrong", ["function", None, 3])
def test_an_async_function_for_headers_is_refused(wrong: Any) -> None:
    async def awaited(call: Outgoing) -> None:
        """Do nothing."""

    for each in (wrong, awaited):
        with pytest.raises(InvalidOption, match="outgoing"):
            App("redis://nowhere.invalid").outgoing(each)


def test_an_object_that_is_no_job_is_refused_with_the_usual_error(seen: list[Outgoing]) -> None:
    wrong: Any = ["no job"]
    refused = []
    for functions in (app.outgoing_functions, []):
        app.outgoing_functions = functions
        with testing.fake(app), pytest.raises(Exception) as error:  # noqa: PT011 - whatever it is, the same
            app.enqueue_many(wrong)
        refused.append((type(error.value), str(error.value)))

    assert refused[0] == refused[1]
    assert [] == seen


def test_the_option_trace_becomes_a_header_that_other_headers_do_not_remove() -> None:
    chosen = send.with_options(trace="link")
    assert {"rq-core-trace": "link"} == json.loads(chosen.options.headers_json)
    both = chosen.with_options(headers={"request": "r-1"})
    assert {"rq-core-trace": "link", "request": "r-1"} == json.loads(both.options.headers_json)
    again = both.with_options(trace="parent")
    assert {"rq-core-trace": "parent", "request": "r-1"} == json.loads(again.options.headers_json)


@pytest.mark.parametrize("wrong", ["auto", "child", "", 1])
def test_the_option_trace_has_two_values(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="must be parent or link"):
        send.with_options(trace=wrong)


def test_an_enqueue_without_a_function_for_headers_calls_no_hook() -> None:
    """Compares the Python calls of an enqueue without a function, and of one with a function that adds nothing. Only
    the second one calls the hook; all else that the app does is the same."""

    def calls_of_app() -> Counter[str]:
        """Leave out what the app calls: ids are drawn in advance, and the simulated server does more at times."""
        called = python_calls(lambda: send.enqueue("a@b.c"))
        return Counter(call for call in called if call.startswith(APP_DIRECTORY))

    with testing.fake(app):
        send.enqueue("warm up")
        without = calls_of_app()
        app.outgoing(lambda _: None)
        try:
            beside = calls_of_app()
        finally:
            app.outgoing_functions.clear()

    assert [] == [call for call in without if outgoing.__file__ in call]
    assert without < beside
    assert {outgoing.__file__} == {call.rpartition(":")[0] for call in beside - without}
