"""A call of a declared flow: its arguments as JSON, the placeholders in them, and its options."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from rq_core.app.arguments import WORDS, invalid, plain_value
from rq_core.app.durable.items import JobCall
from rq_core.app.flows.placeholders import Placeholder
from rq_core.app.options import JobOptions

Path = tuple[str | int, ...]


class TakenApart(NamedTuple):
    """The arguments of a call, and the placeholders that were taken out of them."""

    args: dict[str, Any]
    """The arguments in JSON's types, with None in the place of each placeholder."""
    holes: list[tuple[Path, Placeholder]]


def taken_apart(call: JobCall[Any]) -> TakenApart:
    """Return the arguments of a call, and the placeholders in them. This function validates each argument that has no
    placeholder. A worker validates the other arguments, after the results of other nodes have replaced the
    placeholders. Raises ArgumentsInvalid."""
    arguments, task = call.task.arguments, call.task.name
    if not any(map(_has_hole, (*call.args, *call.kwargs.values()))):
        return TakenApart(json.loads(arguments.dump(call.args, call.kwargs)), [])
    given = arguments.by_name(call.args, call.kwargs)
    absent = [name for name in arguments.names if name not in {*given, *arguments.defaults}]
    if absent:
        raise invalid(task, dict.fromkeys(absent, WORDS["missing"]))
    late = {name: value for name, value in given.items() if _has_hole(value)}
    args = arguments.part({name: value for name, value in given.items() if name not in late})
    if unknown := late.keys() - set(arguments.names):
        raise invalid(task, dict.fromkeys(sorted(unknown), WORDS["extra_forbidden"]))
    holes: list[tuple[Path, Placeholder]] = []
    for name, value in late.items():
        try:
            args[name] = _plain(value, (name,), holes)
            json.dumps(args[name], allow_nan=False, ensure_ascii=False).encode()
        except RecursionError:
            raise invalid(task, {name: "contains itself, or is nested too deeply"}) from None
        except (ValueError, TypeError) as error:
            raise invalid(task, {name: f"cannot be JSON ({error})"}) from None
    return TakenApart(args, holes)


def _has_hole(value: object) -> bool:
    """Return whether a value is a placeholder, or has a placeholder inside of lists, tuples and dicts."""
    left, seen = [value], set()
    while left:
        each = left.pop()
        if isinstance(each, Placeholder):
            return True
        if isinstance(each, dict | list | tuple) and id(each) not in seen:
            seen.add(id(each))  # A list may contain itself; it is refused when it becomes JSON.
            left += each.values() if isinstance(each, dict) else each
    return False


def _plain(value: Any, path: Path, holes: list[tuple[Path, Placeholder]]) -> Any:
    """Return a value in the types of JSON, with None in the place of each placeholder. Append each placeholder and its
    place to ``holes``."""
    if isinstance(value, Placeholder):
        holes.append((path, value))
        return None
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"the key {odd[0]!r} is no text")
        return {key: _plain(each, (*path, key), holes) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, (*path, n), holes) for n, each in enumerate(value)]
    return plain_value(value)


def options_of(options: JobOptions) -> dict[str, Any]:
    """Return the options of a call in the types of JSON. A worker that lacks the code of the call's task can enqueue
    the child with these options. The options for the job's id are left out, since rq-core itself makes the child's
    id."""
    found: dict[str, Any] = {}

    def add(name: str, value: object, made: Callable[[Any], Any] = lambda value: value) -> None:
        if value:
            found[name] = made(value)

    # Always: the worker of the flow may have a task whose own priority is another one.
    found["priority"] = str(options.priority)
    add("max_attempts", options.max_attempts)
    add("max_losses", options.max_losses)
    add("timeout", options.timeout_ms, _seconds)
    add("delay", options.delay_ms, _seconds)
    add("at_ms", options.due_ms)
    add("expires", options.expires_in_ms, _seconds)
    add("expires_ms", options.expires_at_ms)
    add("headers", options.headers_json, json.loads)
    add("keep_result", options.keep_ms, _seconds)
    if options.keep_ms:
        found["audit_result"] = options.audit_result
    return found


def _seconds(ms: int) -> float:
    return ms / 1000
