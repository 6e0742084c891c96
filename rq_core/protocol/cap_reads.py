"""Reads that several questions about caps share. Every read is bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model.keys import QueueKeys
from rq_core.model.limits import CapEntry, Limit
from rq_core.model.scopes import family_of
from rq_core.model.state_line import read_state_line
from rq_core.model.text import number_in
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.lines import read_lines
from rq_core.protocol.plan import Plan

_PIPELINE: Final = 1_000
"""Commands in one round trip."""

NO_LIMIT: Final = Limit(None)


class Holder(NamedTuple):
    """A claimed job that counts in a scope."""

    id: str
    worker: str | None
    since_ms: int | None
    task: str | None = None
    reason: str | None = None
    """Of a dead job: why it died."""
    given_back: bool = False
    """Whether a worker has given it back since it lacks the task, or refuses the arguments."""


def members(scope: str) -> tuple[str, str]:
    """The bounds of a scope's members, or of a whole family's if it is one, in `holders` and `blocked`."""
    if "=" in scope:
        return f"[{scope}|", f"({scope}}}"
    return f"[{scope}=", f"({scope}>"


def entry_of(entries: dict[str, CapEntry], scope: str) -> CapEntry | None:
    """The stored limit that holds for a scope: its own, else its family's."""
    return entries.get(scope) or (
        None if scope.startswith("task=") else entries.get(family_of(scope))
    )


def entries_of(queue: str, texts: Iterable[tuple[str, str | None]]) -> dict[str, CapEntry]:
    """Fields of `caps` as limits; what is not there is left out. Raises QueueDamaged for what is none."""
    found = {}
    for name, text in texts:
        if text is not None:
            try:
                found[name] = CapEntry.parse(text)
            except (ValueError, KeyError):
                raise QueueDamaged(queue=queue, why=f"the limit of {name} reads {text!r}") from None
    return found


def read_entries(
    delivery: Delivery, keys: QueueKeys, names: Sequence[str]
) -> Plan[dict[str, CapEntry]]:
    """The stored limits of these names, of those that have one."""
    found: dict[str, CapEntry] = {}
    wanted = list(dict.fromkeys(names))
    for at in range(0, len(wanted), _PIPELINE):
        chunk = wanted[at : at + _PIPELINE]
        (texts,) = yield from delivery.ask([["HMGET", keys("caps"), *chunk]], keys.queue)
        found |= entries_of(keys.queue, zip(chunk, texts, strict=True))
    return found


def resume_of(stored: Any, limit: Limit, now_ms: int) -> int | None:
    """When a rate goes on (Unix ms), by the score that `scheduled` has. What is later than its limit allows is from
    before the clock went back: the next claim looks at it again."""
    if stored is None:
        return None
    latest = limit.latest_resume_ms(now_ms)
    return int(float(stored)) if latest is None else min(int(float(stored)), latest)


def piped(delivery: Delivery, keys: QueueKeys, commands: list[list[Any]]) -> Plan[list[Any]]:
    replies: list[Any] = []
    for at in range(0, len(commands), _PIPELINE):
        replies += yield from delivery.ask(commands[at : at + _PIPELINE], keys.queue)
    return replies


def read_holders(delivery: Delivery, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[Holder]]:
    """Who has these jobs, and since when they are where they are. Of one that cannot be read nothing is known."""
    lines = yield from read_lines(delivery, keys, ids)
    found = []
    for job_id, line in zip(ids, lines, strict=True):
        try:
            found += holders_of(keys.queue, [job_id], [line])
        except QueueDamaged:
            found += holders_of(keys.queue, [job_id], [None])
    return found


def holders_of(queue: str, ids: Sequence[str], lines: Sequence[str | None]) -> list[Holder]:
    """Which workers have the jobs with these state lines. A job that is gone has no worker. Raises QueueDamaged."""
    found = []
    for job_id, line in zip(ids, lines, strict=True):
        fields = read_state_line(queue, job_id, line).fields if line else {}
        since_ms = number_in(fields.get("since"))
        by, task, reason = map(fields.get, ("by", "task", "reason"))
        found.append(Holder(job_id, by, since_ms, task, reason, "unknown" in fields))
    return found
