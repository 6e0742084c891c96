"""How the scopes of a queue stand: limits, holders, and what waits. Every read is bounded.

client.run(client.calls.inspect.caps("mail", 100))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.limits import CapEntry, Limit
from rq_core.model.machine import PRIORITIES
from rq_core.model.policy import keyless_in
from rq_core.model.scopes import QUEUE, WEIGHT, family_of, is_rate
from rq_core.protocol.cap_reads import (
    NO_LIMIT,
    entry_of,
    members,
    piped,
    read_entries,
    read_holders,
    resume_of,
)
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.plan import Plan, pairs_of

LANES_MAX: Final = 20_000
"""Lanes whose jobs are counted for one answer, shared by its scopes."""
RATES_MAX: Final = 1_000
"""Lanes in which the rates of a family that are spent are looked for."""
_PAGE: Final = 500


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
    keyless: bool = False
    """Whether it is a family without keys: a cap with a name, which counts the jobs of all its tasks together."""

    now_ms: int | None = None
    """Redis' time when it was asked (Unix ms): ``resumes_ms`` is by that clock."""


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
        entries = yield from read_entries(self._delivery, keys, [*names, *map(family_of, names)])
        ((*policies,),) = yield from self._delivery.ask([["HGETALL", keys("tasks")]], queue)
        keyless = {name for text in policies[1::2] for name in keyless_in(text)}
        statuses = yield from self._status(keys, names, entries)
        return [each._replace(keyless=each.scope in keyless) for each in statuses]

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
        replies = yield from piped(self._delivery, keys, commands)
        lanes = {
            name: [member.split("|")[-1] for member in replies[3 * at + 1][: bounds[at]]]
            for at, name in enumerate(names)
        }
        counted = list(dict.fromkeys(lane for each in lanes.values() for lane in each))
        counts = yield from piped(
            self._delivery,
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
                    resume_of(resumes, entry.limit if entry else NO_LIMIT, now_ms),
                    partial=len(replies[3 * at + 1]) > bounds[at],
                    set_by=own.by if own else None,
                    set_at_ms=own.at_ms if own else None,
                    declared=own.declared if own else None,
                    now_ms=now_ms,
                )
            )
        return result

    def _first_resumes(
        self, keys: QueueKeys, families: dict[str, list[str]]
    ) -> Plan[dict[str, float | None]]:
        """When the first of some rates of each family goes on."""
        scopes = [(family, scope) for family, each in families.items() for scope in each]
        scores = yield from piped(
            self._delivery,
            keys,
            [["ZSCORE", keys("scheduled"), f"rate|{scope}"] for _, scope in scopes],
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
        heads = yield from piped(
            self._delivery,
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
        holders = yield from read_holders(self._delivery, keys, [job_id for _, job_id in found])
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
        found = yield from read_holders(self._delivery, keys, [head for head in heads if head])
        first = yield from self._oldest(keys, {QUEUE: list(opened)})
        times = [*first.values(), *(h.since_ms for h in found if h.since_ms is not None)]
        return sum(lengths) + waiting, min(times, default=None)
