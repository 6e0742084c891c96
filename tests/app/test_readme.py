"""The Python of README.md runs as it stands there, and does what its comments say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from rq_core import App, testing
from sql_audit.store.database import Database
from tests.kit.schemas import lay_schema

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def block(word: str) -> str:
    """The only block with this word in it."""
    (found,) = [each for each in BLOCKS if word in each]
    return str(found)


def run(source: str, **names: Any) -> dict[str, Any]:
    """Run a block as a module would, ``await`` included, and return its names."""
    names["__name__"] = "tasks"
    code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)  # noqa: S307 - it is our own README
    if inspect.iscoroutine(result):
        asyncio.run(result)
    return names


@pytest.fixture
def audit_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = str(tmp_path / "audit.db")
    database = Database(path)
    lay_schema(database)
    database.close()
    monkeypatch.setenv("RQ_CORE_AUDIT_URL", path)
    return path


def test_the_first_task_is_enqueued_in_every_way_that_is_shown(
    audit_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = run(block("# tasks.py"))
    app, send = tasks["app"], tasks["send"]

    with testing.fake(app) as fake:
        rows = [("acme", "x@b.c"), ("umbrella", "y@b.c")]
        names = run(block("enqueue_async"), app=app, send=send, rows=rows)
        waiting = fake.enqueued("mail")
        handle = names["handle"]
        told = (handle.state(), handle.history())
        fake.drain()

    assert len(waiting) == 5, "six, and the last was cancelled"
    assert [(job.delay, job.priority) for job in waiting if job.delay] == [(60, "high")]
    assert told == ("gone", []), "no mirror runs"
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "to a@b.c for acme", "to a@b.c for acme", "to a@b.c for acme", "to x@b.c for acme",
        "to y@b.c for umbrella",
    ]  # fmt: skip


def test_the_example_of_a_users_own_test_passes() -> None:
    tasks = run(block("# tasks.py"))

    def sign_up(to: str) -> None:
        tasks["send"].enqueue(tenant="acme", to=to)

    names = run(block("testing.fake"), app=tasks["app"], sign_up=sign_up)

    assert names["ran"].outcome == "succeeded"


def test_the_caps_that_are_shown_are_declared_and_changed() -> None:
    app = App()

    def shard_of(tenant: str, to: str) -> str:
        return f"{tenant[:1]}{len(to)}"

    run(block("Rate(100"), app=app, shard_of=shard_of)
    with testing.fake(app):
        run(block("app.set_cap"), app=app)
        limits = {status.scope: str(status.limit) for status in app.caps("mail")}

    assert limits == {
        "queue": "50",
        "task=send": "20",
        "send.tenant": "1",
        "shard": "5",
        "send.tenant@60s": "100/60000ms/5",
        "weight=acme": "3",
    }
