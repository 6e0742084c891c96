"""Looking at caps, as plans: how scopes stand, and why a job does not run. Every read is bounded.

client.run(client.calls.inspect.caps("mail", 100))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.limits import CapEntry, Limit
from rq_core.model.machine import DEFAULT_PRIORITY, PRIORITIES, State
from rq_core.model.scopes import QUEUE, RANK, WEIGHT, family_of, is_rate
from rq_core.model.state_line import JobState, read_state_line
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Plan, pairs_of

LANES_MAX: Final = 20_000
"""Lanes whose jobs are counted for one answer, shared by its scopes."""
RATES_MAX: Final = 1_000
"""Lanes in which the rates of a family that are spent are looked for."""
AHEAD_MAX: Final = 1_000
"""Lanes, and jobs of its priority's list, in which it is looked who comes before a job."""
HOLDERS_SHOWN: Final = 5
_PAGE: Final = 500
_PIPELINE: Final = 1_000
"""Commands in one round trip."""

NO_LIMIT: Final = Limit(None)


class ScopeStatus(NamedTuple):
    """One scope of a queue, as `rq-core caps` shows it."""

    scope: str
    limit: Limit
    version: int
    """0 if nothing is stored for it or its family."""
    source: str
    """code, live, family (its family's limit holds), or none."""
    holders: int
    waiting: int
    """Jobs in lanes that are blocked on this scope; for the queue, all that are ready while it is full."""
    oldest_wait_ms: int | None
    resumes_ms: int | None = None
    """Of a rate that is spent: when it goes on (Unix ms); of a family of rates, when the first of its keys does."""
    partial: bool = False
    """Whether more wait than were counted."""
    set_by: str | None = None
    """Who set a live limit, and when (Unix ms)."""
    set_at_ms: int | None = None
    declared: Limit | None = None
    """What code declares in the place of a live limit."""


class Holder(NamedTuple):
    """A claimed job that counts in a scope."""

    id: str
    worker: str | None
    since_ms: int | None


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


class Inspect:
    """The reads about caps."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def caps(self, queue: str, limit: int) -> Plan[list[ScopeStatus]]:
        """How the scopes of a queue stand: those with a limit of their own, then the keys that wait or are held, then
        the weights of a fair queue.

        At most ``limit``. What waits is what its lanes that are blocked on the scope hold; of very many lanes, not
        all are counted (``partial``).
        """
        keys = queue_keys(queue, self._delivery.prefix)
        names, weights = yield from self._limited(keys, limit)
        seen = set(names)
        for index in ("blocked", "holders"):
            more = limit - len(names)
            if more > 0:
                found = yield from self._scopes_in(keys, index, more, seen)
                names += found
                seen.update(found)
        names += weights[: limit - len(names)]
        entries = yield from self._entries(keys, [*names, *map(family_of, names)])
        return (yield from self._status(keys, names, entries))

    def _limited(self, keys: QueueKeys, most: int) -> Plan[tuple[list[str], list[str]]]:
        """Scopes and families that have a limit of their own, and keys that have a weight; of very many, not the first
        by name."""
        names: set[str] = set()
        weights: set[str] = set()
        cursor = "0"
        while True:
            ((cursor, flat),) = yield from self._delivery.ask(
                [["HSCAN", keys("caps"), cursor, "COUNT", _PAGE]], keys.queue
            )
            for name in pairs_of(flat):
                (weights if family_of(name) == WEIGHT else names).add(name)
            if str(cursor) == "0" or len(names) >= most:
                return sorted(names)[:most], sorted(weights)[:most]

    def _entries(self, keys: QueueKeys, names: Sequence[str]) -> Plan[dict[str, CapEntry]]:
        """The stored limits of these names, of those that have one."""
        found: dict[str, CapEntry] = {}
        wanted = list(dict.fromkeys(names))
        for at in range(0, len(wanted), _PIPELINE):
            chunk = wanted[at : at + _PIPELINE]
            (texts,) = yield from self._delivery.ask([["HMGET", keys("caps"), *chunk]], keys.queue)
            found |= entries_of(keys.queue, zip(chunk, texts, strict=True))
        return found

    def _scopes_in(self, keys: QueueKeys, index: str, most: int, seen: set[str]) -> Plan[list[str]]:
        """Scopes that have members in an index, in its order, without those seen. Passes over a scope's other
        members."""
        found: list[str] = []
        start = "-"
        while len(found) < most:
            (page,) = yield from self._delivery.ask(
                [["ZRANGEBYLEX", keys(index), start, "+", "LIMIT", 0, _PAGE]], keys.queue
            )
            if not page:
                break
            scopes = dict.fromkeys(member.partition("|")[0] for member in page)
            found += [scope for scope in scopes if scope not in seen]
            start = f"[{next(reversed(scopes))}}}"
        return sorted(found[:most])

    def _status(
        self, keys: QueueKeys, names: Sequence[str], entries: dict[str, CapEntry]
    ) -> Plan[list[ScopeStatus]]:
        """One status per name, in a fixed number of round trips and bounded pipelines."""
        if not names:
            return []
        # Few have a limit of their own, and many lanes wait for those; many are keys, and few wait for one.
        stored = sum(name in entries for name in names)
        shares = [LANES_MAX // 2 // max(1, n) for n in (len(names) - stored, stored)]
        bounds = [max(10, shares[name in entries]) for name in names]
        commands: list[list[Any]] = []
        for name, bound in zip(names, bounds, strict=True):
            low, high = members(name)
            held = [["ZLEXCOUNT", keys("holders"), low, high], ["ZCARD", keys("leases")]][
                name == QUEUE
            ]
            commands += [
                held,
                ["ZRANGEBYLEX", keys("blocked"), low, high, "LIMIT", 0, bound + 1],
                ["ZSCORE", keys("scheduled"), f"rate|{name}"],
            ]
        replies = yield from self._piped(keys, commands)
        lanes = {
            name: [member.split("|")[2] for member in replies[3 * at + 1][: bounds[at]]]
            for at, name in enumerate(names)
        }
        counted = list(dict.fromkeys(lane for each in lanes.values() for lane in each))
        counts = yield from self._piped(
            keys,
            [["ZLEXCOUNT", keys("waiting"), f"[{lane}|", f"({lane}}}"] for lane in counted],
        )
        waiting = dict(zip(counted, counts, strict=True))
        oldest = yield from self._oldest(keys, lanes)
        at_gate = 0
        gate = entries[QUEUE].limit.most if QUEUE in entries else None
        if gate is not None and int(replies[3 * names.index(QUEUE)]) >= gate:
            # Nothing waits for it in a lane: the queue gives out nothing.
            at_gate, first = yield from self._ready(keys)
            oldest |= {} if first is None else {QUEUE: first}
        spent = {
            name: list(dict.fromkeys(m.partition("|")[0] for m in replies[3 * at + 1][:RATES_MAX]))
            for at, name in enumerate(names)
            if is_rate(name) and "=" not in name
        }
        going_on = yield from self._first_resumes(keys, spent)
        # Asked beside something of the queue: in a cluster it is its shard's clock that counts.
        now, _ = yield from self._delivery.ask(
            [["TIME"], ["HGET", keys("meta"), "epoch"]], keys.queue
        )
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        result = []
        for at, name in enumerate(names):
            entry = entry_of(entries, name)
            own = entries.get(name)
            resumes = going_on.get(name, replies[3 * at + 2])
            since = oldest.get(name)
            result.append(
                ScopeStatus(
                    name,
                    entry.limit if entry else NO_LIMIT,
                    entry.version if entry else 0,
                    "none" if entry is None else entry.source if name in entries else "family",
                    int(replies[3 * at]),
                    at_gate if name == QUEUE else sum(waiting[lane] for lane in lanes[name]),
                    None if since is None else max(0, now_ms - since),
                    None if resumes is None else int(float(resumes)),
                    partial=len(replies[3 * at + 1]) > bounds[at],
                    set_by=own.by if own else None,
                    set_at_ms=own.at_ms if own else None,
                    declared=own.declared if own else None,
                )
            )
        return result

    def _first_resumes(
        self, keys: QueueKeys, families: dict[str, list[str]]
    ) -> Plan[dict[str, float | None]]:
        """When the first of some rates of each family goes on."""
        scopes = [(family, scope) for family, each in families.items() for scope in each]
        scores = yield from self._piped(
            keys, [["ZSCORE", keys("scheduled"), f"rate|{scope}"] for _, scope in scopes]
        )
        first: dict[str, float | None] = {}
        for (family, _), score in zip(scopes, scores, strict=True):
            if score is not None:
                first[family] = min(float(score), first.get(family) or float("inf"))
        return first

    def _oldest(self, keys: QueueKeys, lanes: dict[str, list[str]]) -> Plan[dict[str, int]]:
        """Since when the head of the first lane of each priority has waited, the oldest by scope (Unix ms)."""
        firsts: list[tuple[str, str]] = []
        for name, each in lanes.items():
            by_rank: dict[str, str] = {}
            for lane in each:
                by_rank.setdefault(lane[:1], lane)
            firsts += [(name, lane) for lane in by_rank.values()]
        heads = yield from self._piped(
            keys,
            [
                ["ZRANGEBYLEX", keys("waiting"), f"[{lane}|", f"({lane}}}", "LIMIT", 0, 1]
                for _, lane in firsts
            ],
        )
        found = [
            (name, head[0].rpartition("|")[2])
            for (name, _), head in zip(firsts, heads, strict=True)
            if head
        ]
        holders = yield from self._jobs(keys, [job_id for _, job_id in found])
        oldest: dict[str, int] = {}
        for (name, _), holder in zip(found, holders, strict=True):
            if holder.since_ms is not None:
                oldest[name] = min(oldest.get(name, holder.since_ms), holder.since_ms)
        return oldest

    def _ready(self, keys: QueueKeys) -> Plan[tuple[int, int | None]]:
        """How many jobs are ready, in lists and lanes, and since when the first of each list and of the first open lane
        has been (the oldest, Unix ms)."""
        lists = [keys(f"ready:{n}") for n in range(len(PRIORITIES))]
        *lengths, waiting, opened = yield from self._delivery.ask(
            [
                *(["LLEN", key] for key in lists),
                ["ZCARD", keys("waiting")],
                ["ZRANGE", keys("open"), 0, 0],
            ],
            keys.queue,
        )
        heads = yield from self._delivery.ask([["LINDEX", key, 0] for key in lists], keys.queue)
        found = yield from self._jobs(keys, [head for head in heads if head])
        first = yield from self._oldest(keys, {QUEUE: list(opened)})
        times = [*first.values(), *(h.since_ms for h in found if h.since_ms is not None)]
        return sum(lengths) + waiting, min(times, default=None)

    def _piped(self, keys: QueueKeys, commands: list[list[Any]]) -> Plan[list[Any]]:
        replies: list[Any] = []
        for at in range(0, len(commands), _PIPELINE):
            replies += yield from self._delivery.ask(commands[at : at + _PIPELINE], keys.queue)
        return replies

    def _jobs(self, keys: QueueKeys, ids: Sequence[str]) -> Plan[list[Holder]]:
        """Who has these jobs, and since when they are where they are."""
        if not ids:
            return []
        (lines,) = yield from self._delivery.ask([["HMGET", keys("state"), *ids]], keys.queue)
        found = []
        for job_id, line in zip(ids, lines, strict=True):
            fields = read_state_line(keys.queue, job_id, line).fields if line else {}
            since = fields.get("since", "")
            found.append(Holder(job_id, fields.get("by"), int(since) if since.isdigit() else None))
        return found

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
        resumes = None
        limit = NO_LIMIT
        if scope is not None:
            entries |= yield from self._entries(keys, [scope, family_of(scope)])
            entry = entry_of(entries, scope)
            limit = entry.limit if entry else NO_LIMIT
            count, shown, resumes = yield from self._held(keys, scope)
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
        lines = (yield from self._delivery.ask([["HMGET", keys("state"), *ids]]))[0] if ids else []
        # Cancelled jobs are in the list until claim passes over them.
        alive = [read_state_line(keys.queue, i, s) for i, s in zip(ids, lines, strict=True) if s]
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
        in_lanes = yield from self._piped(keys, commands)
        return len(alive) + beyond + sum(in_lanes), at_least or len(lanes) == AHEAD_MAX

    def _held(
        self, keys: QueueKeys, scope: str
    ) -> Plan[tuple[int, tuple[Holder, ...], int | None]]:
        """How many hold a scope, a few of them, and when it resumes if it is a rate."""
        low, high = members(scope)
        count: list[Any] = ["ZLEXCOUNT", keys("holders"), low, high]
        some: list[Any] = ["ZRANGEBYLEX", keys("holders"), low, high, "LIMIT", 0, HOLDERS_SHOWN]
        if scope == QUEUE:
            count, some = (
                ["ZCARD", keys("leases")],
                ["ZRANGE", keys("leases"), 0, HOLDERS_SHOWN - 1],
            )
        total, found, resumes = yield from self._delivery.ask(
            [count, some, ["ZSCORE", keys("scheduled"), f"rate|{scope}"]], keys.queue
        )
        ids = [member.rpartition("|")[2] for member in found]
        holders = yield from self._jobs(keys, ids)
        return int(total), tuple(holders), None if resumes is None else int(float(resumes))


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


def _member(lane: str, job: JobState) -> str:
    return f"{lane}|{_seq(job):016d}|{job.id}"


def _seq(job: JobState) -> int:
    """Its place in line."""
    seq = job.fields.get("seq", "")
    return int(seq) if seq.isdigit() else 0


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
