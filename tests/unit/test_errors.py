"""Errors read well, carry their facts, and form the tree that their module draws."""

import inspect
import pickle
import re

import pytest

from rq_core import errors
from rq_core.errors import RqCoreError

CLASSES = [
    each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, RqCoreError)
]


def drawn_tree() -> dict[str, str]:
    """Parents by child, read off the module's docstring."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.fullmatch(r"    ([│├└─ ]*)([A-Z]\w+)(  .*)?", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            if depth:
                parents[match[2]] = above[depth - 1]
    return parents


def test_the_drawn_tree_is_the_real_one() -> None:
    real = {
        each.__name__: each.__bases__[0].__name__ for each in CLASSES if each is not RqCoreError
    }

    assert drawn_tree() == real


FACTS = {
    "jobs": 2, "claims": 1, "kind": "queue", "name": "a b", "option": "delay", "value": -1, "must": "must be positive",
    "task": "send", "why": "it yields", "problems": "to: is required", "size": 2, "limit": 1,
    "kept": 2, "setting": "results_max",
    "known": "a, b", "queue": "mail", "backlog": 9, "bound": 8, "attached": "other", "found": "0",
    "what": "count", "url": "redis://x", "seconds": 600.0, "after": 60.0,
    "scope": "tenant=acme", "family": "tenant", "id": "job-1", "version": 3,
    "function": "shard_of", "error": "KeyError: 1",
    "holder": "job-2", "module": "tasks", "how": "by signal 9", "where": "tasks.py:3", "last": "7-1",
    "said": "gave_up", "by": "job-3",
}  # fmt: skip


@pytest.mark.parametrize("kind", CLASSES, ids=lambda each: each.__name__)
def test_the_message_is_the_docstring_filled_with_facts(kind: type[RqCoreError]) -> None:
    wanted = set(re.findall(r"{(\w+)", inspect.getdoc(kind) or ""))
    facts = {name: FACTS[name] for name in wanted}

    error = kind(**facts)  # type: ignore[arg-type]

    assert "{" not in str(error)
    assert "\n" not in str(error)
    assert all(getattr(error, name) == value for name, value in facts.items())


@pytest.mark.parametrize(
    "made",
    [
        errors.PayloadTooLarge(task="t", size=2, limit=1),
        errors.WaitTimeout(what="job a has not ended", seconds=2, why="wait again"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_errors_can_be_pickled_with_their_facts(made: RqCoreError) -> None:
    """Process pools and test runners send exceptions through pickle."""
    error = pickle.loads(pickle.dumps(made))  # noqa: S301

    assert (str(error), error.facts) == (str(made), made.facts)
    assert made.facts.items() <= vars(error).items()
