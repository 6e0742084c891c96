"""Compares the contents of a whole queue before and after a call."""

import re
from typing import Any

import redis

from rq_core.model.settings import SLOT_ANSWER

Snapshot = dict[str, Any]
Diff = dict[str, Any]

SLOT_LIFE_MS = 3_600_000


def diff(before: Snapshot, after: Snapshot) -> Diff:
    """Return the changed keys, each with its change.

    In a hash or a sorted set the change is {member: (old, new)}, with None for a missing member. In a list it is (old,
    new). In a stream it is the list of added entries, or (old, new) if older entries have changed.
    """
    assert set(before) == set(after)
    return {key: _change(before[key], after[key]) for key in before if before[key] != after[key]}


def _change(old: Any, new: Any) -> Any:
    if isinstance(old, dict):
        return {
            member: (old.get(member), new.get(member))
            for member in sorted({*old, *new})
            if old.get(member) != new.get(member)
        }
    if (old and isinstance(old[0], tuple)) or (new and isinstance(new[0], tuple)):
        return new[len(old) :] if new[: len(old)] == old else (old, new)
    return old, new


def without_slot(changes: Diff, now_ms: int) -> tuple[Diff, str | None]:
    """Check the slot that the call used. Return the other changes, and the name of the slot, or None if the call used
    no slot."""
    rest = {
        key: dict(value) if isinstance(value, dict) else value for key, value in changes.items()
    }
    moved = rest.pop("slots", {})
    names = {field: moved.pop(field) for field in list(moved) if field.startswith("unique|")}
    if names:
        rest["names"] = names
    for name, (_, kept) in list(moved.items()):
        if kept is None:
            # Another slot was forgotten: with its answer and its mark, or not at all.
            del moved[name]
            slot = name.removesuffix(SLOT_ANSWER)
            assert slot == name or slot not in moved
            assert slot != name or rest["expiring"].pop(f"slot|{name}")[1] is None
    answers = {name: moved.pop(name)[1] for name in list(moved) if name.endswith(SLOT_ANSWER)}
    if not moved:
        assert not answers
        return rest, None
    ((name, (old, new)),) = moved.items()
    number, deadline, *has_answer = new.split(" ")
    assert has_answer in ([], ["+"])
    assert set(answers) <= ({name + SLOT_ANSWER} if has_answer else set())
    assert all(answers.values())
    assert int(number) == (int(old.split(" ")[0]) if old else 0) + 1
    assert now_ms + SLOT_LIFE_MS * 5 // 6 <= int(deadline) <= now_ms + SLOT_LIFE_MS
    marked = rest.get("expiring", {}).pop(f"slot|{name}", None)
    if marked is None:
        assert old.split(" ")[1] == deadline
    else:
        assert marked[1] == int(deadline)
    if not rest.get("expiring", True):
        del rest["expiring"]
    return rest, name


_READ: dict[str, Any] = {
    "string": lambda pipe, key: pipe.get(key),
    "hash": lambda pipe, key: pipe.hgetall(key),
    "list": lambda pipe, key: pipe.lrange(key, 0, -1),
    "set": lambda pipe, key: pipe.smembers(key),
    "zset": lambda pipe, key: pipe.zrange(key, 0, -1, withscores=True),
    "stream": lambda pipe, key: pipe.execute_command("XINFO", "STREAM", key, "FULL", "COUNT", 0),
}


def raw(control: redis.Redis, pattern: str = "*") -> dict[str, Any]:
    """Return the type and the value of each key that matches a pattern."""
    keys: list[Any] = sorted(control.keys(pattern))
    with control.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        kinds = pipe.execute()
        for key, kind in zip(keys, kinds, strict=True):
            _READ[kind](pipe, key)
        return dict(zip(keys, zip(kinds, pipe.execute(), strict=True), strict=True))


def lines_of(snapshot: Snapshot) -> dict[str, str]:
    """Return the state line of each live job, by id.

    A waiting job may have no line in the key `state`. Its line is then the first line of its value in `jobs`.
    """
    waiting = {
        job_id: "ready " + value.split("\n")[0]
        for job_id, value in snapshot["jobs"].items()
        if "\n" in value
    }
    lines: dict[str, str] = snapshot["state"]
    return waiting | lines


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a state line as a dict. Its first word is the field ``state``."""
    word, *rest = line.split(" ")
    return {"state": word, **dict(part.split("=", 1) for part in rest)}


def number_of(entry_id: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)-(\d+)", entry_id)
    assert match, entry_id
    return int(match[1]), int(match[2])


def copy_queue(control: redis.Redis, queue: str, to: str) -> None:
    """Copy all keys of a queue to a new queue. Only a new client may use the copy.

    (A client numbers its calls from 1 in each queue that is new to it.)
    """
    keys: list[Any] = control.keys(f"rqc:{{{queue}}}:*")
    with control.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.copy(key, key.replace(f"{{{queue}}}", f"{{{to}}}"))
        assert all(pipe.execute())
