"""Why a job does not run: its lane, the scope that it waits for, who holds that now, and who is ahead of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.limits import Limit
from rq_core.model.machine import DEFAULT_PRIORITY, PRIORITIES, State
from rq_core.model.scopes import QUEUE, RANK, family_of
from rq_core.model.state_line import JobState, read_state_lines
from rq_core.model.text import number_in
from rq_core.protocol.cap_reads import (
    NO_LIMIT,
    Holder,
    entries_of,
    entry_of,
    members,
    piped,
    read_entries,
    read_holders,
    resume_of,
)
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.lines import read_lines
from rq_core.protocol.plan import Plan

AHEAD_MAX: Final = 1_000
"""Lanes, and jobs of its priority's list, in which it is looked who comes before a job."""
HOLDERS_SHOWN: Final = 5


class Standing(NamedTuple):
    """Where a job stands among those that wait with it, and what it waits for."""

    job: JobState
    lane: str
    """Empty: it has no scopes."""
    place: str
    """open, blocked, or empty: it does not wait in its lane."""
    scope: str | None
    """What it waits for: a scope, the whole queue, or nothing."""
    limit: Limit
    """Of that scope."""
    holders: int
    shown: tuple[Holder, ...]
    """Some of those who hold it."""
    resumes_ms: int | None
    """When a rate that is spent goes on (Unix ms)."""
    ahead: int
    """Jobs before it, where ``ahead_in`` says."""
    paused: bool
    ahead_in: str = ""
    """queue: what may run of its priority and above, whatever its lane; lane: its lane only, since that is blocked, or
    the queue is fair, where no place in line says who is next; empty: it is not ready."""
    ahead_at_least: bool = False
    """Whether there were more places to look at than were."""
    now_ms: int | None = None
    """Redis' time when it was asked about the scope (Unix ms)."""


class Waiting:
    """The reads about one job that waits."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def standing(self, job: JobState) -> Plan[Standing]:
        """Why a job does not run: its lane, the scope that it waits for, who holds that now, and who is ahead of it."""
        keys = queue_keys(job.queue, self._delivery.prefix)
        lane = job.fields.get("lane", "")
        ready = job.state is State.READY
        place, behind, paused, fair, gate_stored, held = yield from self._delivery.ask(
            [
                ["HGET", keys("lanes"), lane],
                ["ZLEXCOUNT", keys("waiting"), f"[{lane}|", f"({_member(lane, job)}"],
                ["HGET", keys("meta"), "paused"],
                ["HGET", keys("meta"), "fair"],
                ["HGET", keys("caps"), QUEUE],
                ["ZCARD", keys("leases")],
            ],
            job.queue,
        )
        entries = entries_of(job.queue, [(QUEUE, gate_stored)])
        word, scope = _place(place) if ready and lane else ("", None)
        gate = entries.get(QUEUE)
        if ready and gate is not None and gate.limit.most is not None and held >= gate.limit.most:
            # Nothing of the queue is claimed then, whatever its lanes say.
            scope = QUEUE
        count: int = 0
        shown: tuple[Holder, ...] = ()
        resumes = now_ms = None
        limit = NO_LIMIT
        if scope is not None:
            entries |= yield from read_entries(self._delivery, keys, [scope, family_of(scope)])
            entry = entry_of(entries, scope)
            limit = entry.limit if entry else NO_LIMIT
            count, shown, stored, now_ms = yield from self._held(keys, scope)
            resumes = resume_of(stored, limit, now_ms)
        ahead, where, at_least = (int(behind), "lane", False) if word else (0, "", False)
        if ready and fair != "1" and (word == "open" or not lane):
            where = "queue"
            ahead, at_least = yield from self._ahead(keys, job, lane)
        return Standing(
            job,
            lane,
            word,
            scope,
            limit,
            count,
            shown,
            resumes,
            ahead,
            paused == "1",
            where,
            at_least,
            now_ms,
        )

    def _ahead(self, keys: QueueKeys, job: JobState, lane: str) -> Plan[tuple[int, bool]]:
        """How many jobs may run before this one, over all lists and open lanes, and whether that is a lower bound."""
        rank, seq = _rank(job), _seq(job)
        lists = [keys(f"ready:{n}") for n in range(rank + 1)]
        *read, index, lanes = yield from self._delivery.ask(
            [
                *(["LRANGE", key, 0, AHEAD_MAX - 1] for key in lists),
                *(["LLEN", key] for key in lists),
                ["LPOS", lists[rank], job.id],
                # A lane stands where its head does: one behind this job has nothing that comes before it.
                [
                    "ZRANGEBYSCORE",
                    keys("open"),
                    "-inf",
                    f"({rank * RANK + seq}",
                    "LIMIT",
                    0,
                    AHEAD_MAX,
                ],
            ],
            keys.queue,
        )
        heads, lengths = read[: len(lists)], read[len(lists) :]
        own = heads[-1]
        if not lane and index is not None:
            heads[-1], lengths[-1] = own[:index], index
        ids = [job_id for head in heads for job_id in head]
        lines = yield from read_lines(self._delivery, keys, ids)
        # Cancelled jobs are in the list until claim passes over them.
        alive, _ = read_state_lines(keys.queue, zip(ids, lines, strict=True))
        beyond = sum(lengths) - len(ids)
        at_least = False
        if lane:
            # A job in a lane has no place in its priority's list: their places in line are compared.
            came_first = [j for j in alive if _rank(j) < rank or _seq(j) < seq]
            beyond -= lengths[-1] - len(own)
            at_least = len(own) < lengths[-1] and len(came_first) == len(alive)
            alive = came_first
        commands = [
            ["ZLEXCOUNT", keys("waiting"), f"[{each}|", f"({each}" + ("}" if int(each[0]) < rank else f"|{seq:016d}")]
            for each in lanes
        ]  # fmt: skip
        in_lanes = yield from piped(self._delivery, keys, commands)
        return len(alive) + beyond + sum(in_lanes), at_least or len(lanes) == AHEAD_MAX

    def _held(self, keys: QueueKeys, scope: str) -> Plan[tuple[int, tuple[Holder, ...], Any, int]]:
        """How many hold a scope, a few of them, when it resumes if it is a rate, and Redis' time (Unix ms)."""
        low, high = members(scope)
        count: list[Any] = ["ZLEXCOUNT", keys("holders"), low, high]
        some: list[Any] = ["ZRANGEBYLEX", keys("holders"), low, high, "LIMIT", 0, HOLDERS_SHOWN]
        if scope == QUEUE:
            count, some = (
                ["ZCARD", keys("leases")],
                ["ZRANGE", keys("leases"), 0, HOLDERS_SHOWN - 1],
            )
        total, found, resumes, time = yield from self._delivery.ask(
            [count, some, ["ZSCORE", keys("scheduled"), f"rate|{scope}"], ["TIME"]], keys.queue
        )
        ids = [member.rpartition("|")[2] for member in found]
        holders = yield from read_holders(self._delivery, keys, ids)
        return int(total), tuple(holders), resumes, int(time[0]) * 1000 + int(time[1]) // 1000


def _member(lane: str, job: JobState) -> str:
    return f"{lane}|{_seq(job):016d}|{job.id}"


def _seq(job: JobState) -> int:
    """Its place in line."""
    return number_in(job.fields.get("seq")) or 0


def _rank(job: JobState) -> int:
    priority = job.fields.get("priority", str(DEFAULT_PRIORITY))
    return [str(each) for each in PRIORITIES].index(priority)


def _place(text: str | None) -> tuple[str, str | None]:
    """Read a field of `lanes`: ``open ORDER`` or ``blocked SCOPE ORDER``."""
    match (text or "").split(" "):
        case ["blocked", scope, _]:
            return "blocked", scope
        case ["open", _]:
            return "open", None
    return "", None
