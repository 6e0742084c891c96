"""The Python code of README.md runs as written, and does what the comments in the code say."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import rq_core
from rq_core import App, testing

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def block(word: str) -> str:
    """Return the one block of code in the README that contains this word."""
    (found,) = [each for each in BLOCKS if word in each]
    return str(found)


def run(source: str, **names: Any) -> dict[str, Any]:
    """Run a block of code, which may use ``await``, as a module. Return the names that it defines."""
    names["__name__"] = "tasks"
    code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)  # noqa: S307 - it is our own README
    if inspect.iscoroutine(result):
        asyncio.run(result)
    return names


def test_the_first_example_prints_the_output_that_the_readme_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tasks = run(block("# tasks.py"))

    with testing.fake(tasks["app"]) as fake:
        tasks["send"].enqueue(tenant="acme", to="a@b.c")
        (ran,) = fake.drain("mail")

    assert "succeeded" == ran.outcome
    assert "to a@b.c for acme\n" == capsys.readouterr().out


def test_the_retry_example_behaves_as_the_readme_says() -> None:
    app = App()
    names = {name: getattr(rq_core, name) for name in ("RetryPolicy", "RetryLater", "GiveUp")}
    busy = iter([True, False])
    run(
        block("bank_is_busy"),
        app=app,
        bank_is_busy=lambda: next(busy),
        known=lambda account: account == "ada",
        **names,
    )

    with testing.fake(app) as fake:
        app.enqueue("payments", "charge", {"account": "bob", "cents": 1})
        ran = fake.drain("payments")

    assert ["scheduled", "dead"] == [each.outcome for each in ran]
    assert ran[1].error == "GiveUp: no such account"


def test_the_cap_example_declares_and_changes_caps() -> None:
    app = App()
    source = block("Rate(100")
    declared, _, change = source.partition("app.set_cap")
    run(declared, app=app, Cap=rq_core.Cap, Rate=rq_core.Rate)
    with testing.fake(app):
        run("app.set_cap" + change, app=app)
        limits = {status.scope: str(status.limit) for status in app.caps("mail")}

    assert limits == {
        "queue": "50",
        "task=send_capped": "20",
        "send_capped.tenant": "1",
        "task@60s=send_capped": "100/60000ms/1",
    }


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
