"""Errors: each has a readable message, and the facts of the message as attributes."""

import ast
import functools
import inspect
import pickle
import re
from pathlib import Path

import pytest

import sql_audit.errors
from rq_core import errors, signals
from rq_core.errors import RqCoreError

ROOT = Path(__file__).parents[2]
CLASSES = [
    each
    for module in (errors, signals)
    for _, each in inspect.getmembers(module, inspect.isclass)
    if each.__module__ == module.__name__ and issubclass(each, RqCoreError)
]


@functools.cache
def made_errors() -> list[tuple[Path, ast.Call, type[RqCoreError]]]:
    """Return each call in the packages that creates an error, with the module of the call."""
    made = []
    kinds = {
        name: kind
        for module in (errors, signals, sql_audit.errors)
        for name, kind in vars(module).items()
    }
    for source in (*ROOT.glob("rq_core/**/*.py"), *ROOT.glob("sql_audit/**/*.py")):
        for call in ast.walk(ast.parse(source.read_text())):
            if isinstance(call, ast.Call):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else None
                kind = kinds.get(str(name or getattr(call.func, "id", "")))
                if inspect.isclass(kind) and issubclass(kind, RqCoreError):
                    made.append((source, call, kind))
    return made


def test_type_checkers_know_every_argument_of_an_error() -> None:
    missing = set()
    for _source, call, kind in made_errors():
        known = {each for above in kind.__mro__ for each in inspect.get_annotations(above)}
        missing |= {(kind.__name__, k.arg) for k in call.keywords if k.arg not in known}

    assert not missing


def test_each_place_that_raises_an_error_passes_every_fact_of_its_message() -> None:
    """A call without one of the facts would raise KeyError instead of the error."""
    missing = [
        f"{source.relative_to(ROOT)}:{call.lineno}: {kind.__name__} lacks {fact}"
        for source, call, kind in made_errors()
        if not call.args and None not in (given := {each.arg for each in call.keywords})
        for fact in set(re.findall(r"{(\w+)", inspect.getdoc(kind) or "")) - given
    ]

    assert [] == missing


FACTS = {
    "rows": 3,
    "jobs": 2, "claims": 1, "kind": "queue", "name": "a b", "option": "delay", "value": -1, "must": "must be positive",
    "task": "send", "flow": "monthly", "why": "it yields", "problems": "to: is required", "size": 2, "limit": 1,
    "kept": 2, "setting": "results_max",
    "known": "a, b", "queue": "mail", "backlog": 9, "bound": 8, "attached": "other", "found": "0",
    "what": "count", "url": "redis://x", "seconds": 600.0, "after": 60.0,
    "scope": "tenant=acme", "family": "tenant", "id": "job-1", "version": 3,
    "function": "shard_of", "error": "KeyError: 1",
    "holder": "job-2", "module": "tasks", "how": "by signal 9", "where": "tasks.py:3", "last": "7-1",
    "said": "gave_up", "by": "job-3", "step": "charge", "call": "durable()",
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_the_message_of_an_error_is_its_docstring_with_its_facts(kind: type[RqCoreError]) -> None:
    wanted = set(re.findall(r"{(\w+)", inspect.getdoc(kind) or ""))
    facts = {name: FACTS[name] for name in wanted}

    error = kind(**facts)  # type: ignore[arg-type]

    assert "{" not in str(error)
    assert "\n" not in str(error)
    assert all(getattr(error, name) == value for name, value in facts.items())


def test_a_message_shows_a_long_value_shortened_with_its_passwords_masked() -> None:
    error = errors.InvalidOption.of("value", ["redis://u:secret@h/0 " * 100_000], "must be short")

    assert len(str(error)) < 400
    assert "…" in str(error)
    assert "must be short" in str(error)
    assert "secret" not in str(error)
    assert ["redis://u:secret@h/0 " * 100_000] == error.value


@pytest.mark.parametrize(
    "made",
    [
        errors.PayloadTooLarge(task="t", size=2, limit=1),
        errors.WaitTimeout(what="job a has not ended", seconds=2, why="wait again"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_errors_can_be_pickled_with_their_facts(made: RqCoreError) -> None:
    """Process pools and test runners pickle exceptions."""
    error = pickle.loads(pickle.dumps(made))  # noqa: S301

    assert (str(error), error.facts) == (str(made), made.facts)
    assert made.facts.items() <= vars(error).items()
