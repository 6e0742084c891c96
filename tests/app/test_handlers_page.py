"""The Python code of docs/how-to/handlers.md runs as written. tests/worker/test_leaving.py has the same table as the
page."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import pytest

from rq_core import Depends, JobContext, JobLogFilter, current_job, testing
from rq_core.model.job import spec_of
from tests.app.test_readme import run

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "handlers.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def block(word: str) -> str:
    """Return the one block of code on the page that contains this word."""
    (found,) = [each for each in BLOCKS if word in each]
    return str(found)


class FakeSession:
    """A database session whose method ``execute`` does nothing, with or without ``await``."""

    def execute(self, _statement: object) -> FakeSession:
        return self

    def __await__(self) -> Iterator[None]:
        return iter(())


@pytest.fixture
def page() -> Iterator[dict[str, Any]]:
    """Run the first two blocks of the page. Yield the names that they define, with a fake server for the app."""
    definitions, _, _ = block("async def engine").partition("report.enqueue")
    names = run(definitions)
    run_in(names, block("def sync_engine"))
    with testing.fake(names["app"]):
        yield names


def run_in(names: dict[str, Any], source: str) -> None:
    """Run a block of code with these names, and add the names that the block defines."""
    names.update(run(source, **names))


def test_the_session_of_a_handler_is_not_an_argument_of_its_job(
    page: dict[str, Any],
) -> None:
    app = page["app"]
    names = {**page, "testing": testing, "FakeSession": FakeSession}
    # The block has a fake server of its own.
    run(block("testing.fake(app)") + "\ntest_report()\n", **names)

    assert page["report"].job("2026-11").args_json == '{"month":"2026-11"}'
    assert app.tasks.keys() == {"report", "summary"}


def test_direct_calls_create_the_dependencies_that_are_not_passed(page: dict[str, Any]) -> None:
    made: list[str] = []

    def fake() -> Iterator[FakeSession]:
        made.append("made")
        yield FakeSession()

    app = page["app"]
    with app.override(page["session"], fake), app.override(page["sync_session"], fake):
        run(block('summary("2026-11")'), **page, my_session=FakeSession())

    assert made == ["made", "made"]


def test_sync_and_async_dependencies_and_the_middleware_run(page: dict[str, Any]) -> None:
    observed: list[str] = []
    statistics = SimpleNamespace(observe=lambda task, seconds: observed.append(task))
    bound: list[Any] = []

    @contextlib.contextmanager
    def bound_contextvars(**facts: Any) -> Iterator[None]:
        bound.append(facts)
        yield

    structlog = SimpleNamespace(contextvars=SimpleNamespace(bound_contextvars=bound_contextvars))
    run_in(page, block("def a(month"))
    run_in(page | {"statistics": statistics}, block("statistics"))
    run_in(page | {"structlog": structlog, "JobContext": JobContext}, block("bound_contextvars"))
    app = page["app"]
    with app.override(page["sync_session"], FakeSession), testing.fake(app) as fake:
        page["a"].enqueue("2026-11")
        page["b"].enqueue("2026-11")
        outcomes = [ran.outcome for ran in fake.drain()]

    assert outcomes == ["succeeded", "succeeded"]
    assert observed == ["a", "b"]
    assert [facts["task"] for facts in bound] == ["a", "b"]


def test_the_example_on_the_page_sends_headers_and_its_handler_reads_them(
    page: dict[str, Any],
) -> None:
    enqueues, _, reads = block("request-id").partition("\n\n")
    run(enqueues, **page, request=SimpleNamespace(id="01a2"))
    client = page["app"].client

    (value,) = client.run(client.calls.reads.snapshot("reports"))["jobs"].values()
    assert spec_of(value).startswith('{"headers":{"request-id":"01a2"},')
    with testing.job_running(headers={"request-id": "01a2"}):
        run(reads, current_job=current_job)


def test_the_example_adds_the_filter_of_log_records_to_a_log_handler() -> None:
    names = run(block("addFilter"), logging=logging, JobLogFilter=JobLogFilter)

    assert [type(each) for each in names["handler"].filters] == [JobLogFilter]


@pytest.mark.parametrize(
    ("commit", "close", "raised"),
    [(True, False, ConnectionError), (False, True, None), (False, False, None)],
)
def test_a_failed_commit_of_a_session_fails_the_attempt_but_a_failed_close_does_not(
    commit: bool, close: bool, raised: Any
) -> None:
    def away(fails: bool) -> None:
        if fails:
            raise ConnectionError

    session = SimpleNamespace(commit=lambda: away(commit), close=lambda: away(close))
    names = run(
        block("session.commit()"),
        contextlib=contextlib, Iterator=Iterator, Session=lambda _: session, Annotated=Annotated, Depends=Depends,
        Engine=None, sync_engine=None,
    )  # fmt: skip

    leaving = pytest.raises(raised) if raised else contextlib.nullcontext()
    with leaving, contextlib.contextmanager(names["careful_session"])(None):
        pass
