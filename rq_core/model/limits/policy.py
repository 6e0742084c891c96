"""A task's *policy*: a JSON text with the rules by which the task's jobs get their scopes, names and options.

A worker registers the policy of each of its tasks in a queue. With the policy, producers without the task's code put
jobs into the same lanes as producers with the code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rq_core.model.limits.scopes import FAIR
from rq_core.model.unique_names import digest_of, unique_name


class ScopeSource(NamedTuple):
    """A rule that gives each job of a task at most one scope."""

    family: str
    scope: str = ""
    """The scope, if it is the same for all jobs; else empty."""
    argument: str = ""
    """Name of the argument whose value becomes the key of the scope, such as ``acme`` in ``tenant=acme``."""
    function: Callable[..., Any] | None = None
    """The function that takes a job's arguments by name and returns the key of the scope, such as ``acme`` in
    ``tenant=acme``."""
    function_name: str = ""
    """Name of the function that returns the key. A process without the task's code has only this name."""
    default: str | None = None
    """The key of the scope of a job whose call left the argument out."""
    otherwise: str | None = None
    """The key of a job for which the rule gives no key; None: the job is then in no scope of this rule."""
    on_full: str = "wait"
    max_waiting: int | None = None
    most: int | None = None
    """The scope's cap in the producer's code. While Redis stores no limit for the scope, this cap decides whether the
    scope is full."""
    cost: str = ""
    """The unit that the rate counts; empty: each job counts as 1. The unit has the name of the argument whose value is
    a job's cost, or of the function that returns the cost."""
    cost_function: Callable[..., Any] | None = None
    """The function that takes a job's arguments by name and returns the cost."""
    cost_is_computed: bool = False
    """True if a function returns the cost, even if this process does not have the function."""
    cost_default: int | None = None
    """The cost of a job whose call left the argument out."""

    def document(self) -> dict[str, Any]:
        """Return the rule as a JSON object of a policy. Fields with their default values are left out."""
        facts = {
            "family": self.family,
            "scope": self.scope,
            "argument": self.argument,
            "function": self.function_name,
            "default": self.default,
            "otherwise": self.otherwise,
            "on_full": "" if self.on_full == "wait" else self.on_full,
            "max_waiting": self.max_waiting,
            "most": None if self.on_full == "wait" else self.most,
            "cost": self.cost,
            "cost_computed": self.cost_is_computed or None,
            "cost_default": self.cost_default,
        }
        return {name: value for name, value in facts.items() if value not in (None, "")} | (
            {"otherwise": ""} if self.otherwise == "" else {}
        )


NAME_KEY: Final = "unique"
"""The key in ``keys`` under which a producer without the task's code passes the value for the job's unique name. A
producer with the code gets this value from the function in ``per``."""


class Naming(NamedTuple):
    """The rule for the unique names of a task's jobs. Producers without the task's code can apply it."""

    ties: Mapping[str, Any]
    """Keyword arguments for :func:`rq_core.model.job.ties_of`. They say what happens if another job holds the name,
    and for how long a job holds its name."""
    arguments: tuple[str, ...] | None = None
    """Names of the arguments whose values are in the name. None: all arguments count, or a function returns the value
    in the name."""
    function: str = ""
    """Name of the function that returns the value in the name; empty: there is no function."""
    defaults: Mapping[str, Any] = {}
    """The values of arguments that a call leaves out, in the types of JSON."""

    def name(self, task: str, values: Mapping[str, Any], key: str | None = None) -> str:
        """Return the unique name of a job. ``values`` are the job's arguments, in the types of JSON. ``key`` is the
        value that the rule's function returned for the job; None without a function."""
        if self.function:
            return unique_name(task, {self.function: _text(key)})
        whole = {**self.defaults, **values}
        if self.arguments is None:
            return unique_name(task, None, digest=digest_of(_text(whole)))
        given = {name: _text(whole[name]) for name in self.arguments if name in whole}
        return unique_name(task, given)

    def document(self) -> dict[str, Any]:
        """Return the rule as a JSON object of a policy."""
        per = self.function or (None if self.arguments is None else list(self.arguments))
        return {"ties": dict(self.ties), "per": per, "defaults": dict(self.defaults)}


_TIES: Final = {"unique": str, "window_ms": int, "after_ms": int, "most_ms": int}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def families_of(text: str) -> list[str]:
    """Return the families of scopes in a task's policy, such as ``task`` and ``tenant``, except the family for
    fairness. The list is empty if the policy cannot be read.
    """
    try:
        return [str(each["family"]) for each in _scopes(text) if each["family"] != FAIR]
    except (ValueError, KeyError, TypeError):
        return []


def keyless_in(text: str) -> list[str]:
    """Return the families of scopes, in a task's policy, that have only one scope: it has no key, and counts all jobs.
    The list is empty if the policy cannot be read.
    """
    try:
        return [
            str(each["family"])
            for each in _scopes(text)
            if each.get("scope") == f"{each['family']}="
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def write_policy(
    sources: Iterable[ScopeSource],
    naming: Naming | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return a task's policy as JSON. ``options`` are the options of the task's jobs that differ from their defaults,
    by their names in OPTIONS."""
    said: dict[str, Any] = {"scopes": [source.document() for source in sources]}
    if naming is not None:
        said["name"] = naming.document()
    if options:
        said["options"] = dict(options)
    return json.dumps(said, separators=(",", ":"))


OPTIONS: Final = {
    "priority": str,
    "max_attempts": int,
    "max_losses": int,
    "keep_ms": int,
    "audit_result": str,
}
"""Options of a task that producers without the task's code apply when they enqueue a job, each with the type of its
value. (The timeout is not among them: workers take it from their definition of the task.)"""


def read_options(text: str) -> dict[str, Any]:
    """Return the options of a task's jobs from the task's policy. Raises ValueError, KeyError or TypeError if the
    policy is invalid."""
    said = _document(text).get("options", {})
    if not isinstance(said, dict) or not all(
        type(value) is OPTIONS.get(name) for name, value in said.items()
    ):
        raise TypeError("its options have an unknown name or a wrong type")
    return said


def read_naming(text: str) -> Naming | None:
    """Return the rule for the unique names of a task's jobs from the task's policy; None if the jobs have no unique
    names. Raises ValueError, KeyError or TypeError if the policy is invalid."""
    said = _document(text).get("name")
    if said is None:
        return None
    ties, per, defaults = said["ties"], said["per"], said["defaults"]
    names = per if isinstance(per, list) else []
    known = isinstance(ties, dict) and all(
        type(value) is _TIES.get(name) for name, value in ties.items()
    )
    if not known or not isinstance(defaults, dict) or not all(isinstance(n, str) for n in names):
        raise TypeError("its rule for names is invalid")
    return Naming(
        ties,
        tuple(names) if isinstance(per, list) else None,
        per if isinstance(per, str) else "",
        defaults,
    )


def read_policy(text: str) -> list[ScopeSource]:
    """Return the rules for the scopes of a task's jobs from the task's policy. Raises ValueError, KeyError or TypeError
    if the policy is invalid."""
    return [_read_source(each) for each in _scopes(text)]


def _scopes(text: str) -> list[dict[str, Any]]:
    """Return a policy's rules for scopes as JSON objects. Raises ValueError, KeyError or TypeError if the policy is
    invalid."""
    scopes = _document(text)["scopes"]
    if not isinstance(scopes, list) or not all(isinstance(each, dict) for each in scopes):
        raise TypeError("its scopes are no list of objects")
    return scopes


def _read_source(facts: Mapping[str, Any]) -> ScopeSource:
    return ScopeSource(
        family=facts["family"],
        scope=facts.get("scope", ""),
        argument=facts.get("argument", ""),
        function_name=facts.get("function", ""),
        default=facts.get("default"),
        otherwise=facts.get("otherwise"),
        on_full=facts.get("on_full", "wait"),
        max_waiting=facts.get("max_waiting"),
        most=facts.get("most"),
        cost=facts.get("cost", ""),
        cost_is_computed=facts.get("cost_computed", False),
        cost_default=facts.get("cost_default"),
    )


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found
