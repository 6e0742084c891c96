"""Where the scopes of a task's jobs come from, and how that is registered in a queue: a task's *policy*, as JSON.

A worker registers the policy of each task, so that producers that do not have the task's code put jobs into the same
lanes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from rq_core.model.limits.scopes import FAIR
from rq_core.model.unique_names import digest_of, unique_name


class ScopeSource(NamedTuple):
    """Where one scope of a task's jobs comes from."""

    family: str
    scope: str = ""
    """The scope itself, if it does not depend on the arguments."""
    argument: str = ""
    """The argument that is the key."""
    function: Callable[..., Any] | None = None
    """Gives the key; it gets the arguments by name."""
    function_name: str = ""
    """Its name, where the function itself is not at hand."""
    default: str | None = None
    """The key if the argument is not given."""
    otherwise: str | None = None
    """The key if there would be none; None: then this counts the job not."""
    on_full: str = "wait"
    max_waiting: int | None = None
    most: int | None = None
    """Its cap in this code: what decides whether it is full for as long as none is stored."""

    def document(self) -> dict[str, Any]:
        """Return its JSON object in a policy; fields at their defaults are left out."""
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
        }
        return {name: value for name, value in facts.items() if value not in (None, "")} | (
            {"otherwise": ""} if self.otherwise == "" else {}
        )


NAME_KEY: Final = "unique"
"""The word by which a producer gives the value that a task's function makes for the names of its jobs."""


class Naming(NamedTuple):
    """How jobs of a task get their names, for producers that do not have the task's code."""

    ties: Mapping[str, Any]
    """The arguments of :func:`rq_core.model.job.ties_of` that say what a name is for."""
    arguments: tuple[str, ...] | None = None
    """The arguments whose values are in the name; None: all, or a function makes the value."""
    function: str = ""
    """The name of that function."""
    defaults: Mapping[str, Any] = {}
    """The values of arguments that a call leaves out, in the types of JSON."""

    def name(self, task: str, values: Mapping[str, Any], key: str | None = None) -> str:
        """Return the name of a job with these arguments, in the types of JSON. ``key`` is the value in the place of a
        function."""
        if self.function:
            return unique_name(task, {self.function: _text(key)})
        whole = {**self.defaults, **values}
        if self.arguments is None:
            return unique_name(task, None, digest=digest_of(_text(whole)))
        given = {name: _text(whole[name]) for name in self.arguments if name in whole}
        return unique_name(task, given)

    def document(self) -> dict[str, Any]:
        """Return its JSON object in a policy."""
        per = self.function or (None if self.arguments is None else list(self.arguments))
        return {"ties": dict(self.ties), "per": per, "defaults": dict(self.defaults)}


_TIES: Final = {"unique": str, "window_ms": int, "after_ms": int, "most_ms": int}


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def families_of(text: str) -> list[str]:
    """Return the families that count a policy's jobs; empty for a policy that cannot be read."""
    try:
        return [str(each["family"]) for each in _scopes(text) if each["family"] != FAIR]
    except (ValueError, KeyError, TypeError):
        return []


def keyless_in(text: str) -> list[str]:
    """Return the families of a policy that have one scope only, for any arguments; empty for a policy that cannot be
    read."""
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
    """Return a task's policy, for producers without the task's code, as JSON. ``options`` are the options of its jobs
    that differ from the defaults, by their names in OPTIONS."""
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
"""Options of a task that its jobs get when they are enqueued, and the types of their values. A worker takes its
timeout from the task itself."""


def read_options(text: str) -> dict[str, Any]:
    """Return the options of a task's jobs by its policy. Raises ValueError, KeyError or TypeError if the policy is
    invalid."""
    said = _document(text).get("options", {})
    if not isinstance(said, dict) or not all(
        type(value) is OPTIONS.get(name) for name, value in said.items()
    ):
        raise TypeError("its options are of an unknown kind")
    return said


def read_naming(text: str) -> Naming | None:
    """Return how jobs of a task get their names by its policy; None if they have no names. Raises ValueError, KeyError
    or TypeError if the policy is invalid."""
    said = _document(text).get("name")
    if said is None:
        return None
    ties, per, defaults = said["ties"], said["per"], said["defaults"]
    names = per if isinstance(per, list) else []
    known = isinstance(ties, dict) and all(
        type(value) is _TIES.get(name) for name, value in ties.items()
    )
    if not known or not isinstance(defaults, dict) or not all(isinstance(n, str) for n in names):
        raise TypeError("its names are of an unknown kind")
    return Naming(
        ties,
        tuple(names) if isinstance(per, list) else None,
        per if isinstance(per, str) else "",
        defaults,
    )


def read_policy(text: str) -> list[ScopeSource]:
    """Return the sources that workers have registered. Raises ValueError, KeyError or TypeError if the policy is
    invalid."""
    return [_read_source(each) for each in _scopes(text)]


def _scopes(text: str) -> list[dict[str, Any]]:
    """Return the sources of scopes that a policy lists. Raises ValueError, KeyError or TypeError."""
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
    )


def _document(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(found, dict):
        raise TypeError("it is no object")
    return found
