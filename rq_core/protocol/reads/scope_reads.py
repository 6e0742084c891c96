"""Reads the scopes of a queue: their limits, their holders (running jobs) and the jobs that wait for them. Also finds
out why a job does not run. Every read is bounded.

    client.run(client.calls.reads.caps("mail", 100))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.errors import QueueDamaged
from rq_core.model.keys import QueueKeys
from rq_core.model.lib.text import number_in
from rq_core.model.limits.limit import CapEntry, Limit
from rq_core.model.limits.policy import keyless_in
from rq_core.model.limits.scopes import QUEUE, RANK, WEIGHT, family_of, is_rate
from rq_core.model.limits.use import OPEN, ScopeUse, use_of
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import DEFAULT_PRIORITY, PRIORITIES, State
from rq_core.protocol.engine.plan import Plan, pairs_of
from rq_core.protocol.reads.ranges import (
    Range,
    answers,
    count_of_holders,
    job_of,
    of_lane,
    of_scope,
    scopes_in,
    within,
)
from rq_core.protocol.reads.rate_reads import paused_in, resume_of, resumes_in, spent_in
from rq_core.protocol.reads.steps import PAGE, QueueReader, Steps, ask, jobs_of, time_ms

LANES_MAX: Final = 20_000
"""Maximum number of lanes whose jobs are counted for one answer, for all its scopes together. A lane has the waiting
jobs of one priority and the same scopes."""
RATES_MAX: Final = 1_000
"""Maximum number of blocked lanes (lists of jobs that wait for a scope) that are read to find the used-up rates of a
family."""
AHEAD_MAX: Final = 1_000
"""Maximum number of lanes (lists of jobs with the same scopes) that are read to count the jobs that will run before a
given job."""
LISTED_MAX: Final = PAGE
"""Maximum number of jobs that are read at the head of each list, to count the jobs that will run before a given job.
Cancelled jobs among them are not counted."""
PLACE_MAX: Final = 100_000
"""Maximum number of entries of a list that Redis searches to find a job's position in the list. During this search,
Redis serves no other client."""
HOLDERS_SHOWN: Final = 5
NO_LIMIT: Final = Limit(None)


class ScopeStatus(NamedTuple):
    """One scope of a queue, as `rq-core caps` shows it."""

    scope: str
    limit: Limit
    version: int
    """Version of the limit; 0 if no limit is stored for the scope or its family."""
    source: str
    """Origin of the limit: code, live (an operator), family (the limit of the scope's family holds), or none."""
    holders: int
    waiting: int
    """Number of jobs that wait for this scope. For the scope of the whole queue: the number of all ready jobs while the
    queue's cap is reached, else 0."""
    oldest_wait_ms: int | None
    resumes_ms: int | None = None
    """Unix ms at which a used-up rate admits jobs again. For a family of rates: the earliest such time of the family's
    keys."""
    partial: bool = False
    """True if more jobs wait than ``waiting`` counts."""
    set_by: str | None = None
    """The actor who set the scope's own limit: an operator or a client; None: the scope has no limit of its own.
    ``set_at_ms`` is the time of this change (Unix ms)."""
    set_at_ms: int | None = None
    declared: Limit | None = None
    """The limit that code declares, if an operator has set another one. The operator's limit is then in force."""
    keyless: bool = False
    """True if the scope is a named cap without keys. Such a cap counts the jobs of all tasks that use it together."""

    now_ms: int | None = None
    """Redis' time at the read (Unix ms). ``resumes_ms`` is by the same clock."""
    use: ScopeUse = OPEN
    """How much of a rate is used up, and whether the scope is paused or probing (a single job tests whether the service
    works again)."""
    pause: Mapping[str, Any] | None = None
    """The audit log's record of the pause in force, such as who paused the scope and why; None: the log has no such
    pause, or was not read."""


class ScopeHolder(NamedTuple):
    """A claimed job that counts toward the limit of a scope. If the job cannot be read, only its id is known."""

    id: str
    worker: str | None
    since_ms: int | None


class Standing(NamedTuple):
    """The reason why a job does not run: the scope for which the job waits, and the number of jobs before it."""

    job: JobState
    lane: str
    """The name of the job's lane, which has the waiting jobs of one priority and the same scopes; empty: the job has no
    scopes."""
    place: str
    """State of the job's lane, open or blocked (by a full scope); empty: the job does not wait in a lane."""
    scope: str | None
    """The scope that the job waits for (``queue``: the cap of the whole queue); None: it waits for no scope."""
    limit: Limit
    """The limit of the scope that the job waits for."""
    holders: int
    shown: tuple[ScopeHolder, ...]
    """Some of the running jobs that hold the scope that the job waits for."""
    resumes_ms: int | None
    """Unix ms at which a used-up rate admits jobs again, if the job waits for this rate."""
    ahead: int
    """Number of jobs that wait before the job, in the lists or lanes that ``ahead_in`` names."""
    paused: bool
    ahead_in: str = ""
    """The lists or lanes in which ``ahead`` counts jobs. ``queue``: the lists and open lanes of the job's priority and
    of higher priorities. ``lane``: only the job's lane, because the lane is blocked, or because the queue is fair (then
    the position in the queue does not decide). Empty: ``ahead`` is not counted."""
    ahead_at_least: bool = False
    """True if ``ahead`` is a lower bound, since not all lists and lanes were read."""
    now_ms: int | None = None
    """Redis' time at the read of the scope (Unix ms); None: no scope was read."""
    use: ScopeUse = OPEN
    """How much of a rate is used up, and whether the scope is paused or probing (a single job tests whether the service
    works again), if the job waits for a rate or a breaker."""
    pause: Mapping[str, Any] | None = None
    """The audit log's record of the pause in force, if the scope that the job waits for is paused; None: the log has no
    such pause, or was not read."""


class ScopeReads(QueueReader):
    """Reads the scopes of a queue: their limits, their holders (running jobs) and the jobs that wait for them."""

    def caps(self, queue: str, limit: int, *, lanes: int = LANES_MAX) -> Plan[list[ScopeStatus]]:
        """Return the scopes of a queue, at most ``limit`` of them. Scopes with a limit of their own come first, then
        paused scopes and breakers with failures, then keys with waiting or running jobs, then the weights of a fair
        queue.

        Only the jobs of about ``lanes`` blocked lanes (lists of jobs with the same scopes) are counted as ``waiting``;
        ``partial`` is true if a scope has more lanes. At most about ``lanes`` stored limits are read; further limits
        are left out.
        """
        return self.exactly(queue, _caps(self._keys(queue), limit, lanes))

    def standing(self, job: JobState) -> Plan[Standing]:
        """Return why a job does not run: its lane, the scope for which it waits, the jobs that hold the scope, and the
        number of jobs before it."""
        return self.exactly(job.queue, _standing(self._keys(job.queue), job))


# Stored limits.


def entries_of(queue: str, texts: Iterable[tuple[str, str | None]]) -> dict[str, CapEntry]:
    """Return the stored limits in fields of the key ``caps``, by name. Missing fields are left out. Raises QueueDamaged
    if a text is not a limit."""
    found = {}
    for name, text in texts:
        if text is not None:
            try:
                found[name] = CapEntry.parse(text)
            except (ValueError, KeyError):
                raise QueueDamaged(queue=queue, why=f"the limit of {name} reads {text!r}") from None
    return found


def _entry_of(entries: dict[str, CapEntry], scope: str) -> CapEntry | None:
    """Return the stored limit that holds for a scope: the scope's own limit, else the limit of the scope's family, else
    None."""
    of_family = None if scope.startswith("task=") else entries.get(family_of(scope))
    return entries.get(scope) or of_family


def _is_full(gate: CapEntry | None, running: int) -> bool:
    """Return whether the queue's own cap is reached. Then no job of the queue can be claimed."""
    return gate is not None and gate.limit.most is not None and running >= gate.limit.most


# All scopes of a queue.


def _caps(keys: QueueKeys, most: int, counted: int) -> Steps[list[ScopeStatus]]:
    names, weights = yield from _limited(keys, most, counted)
    if most > len(names):
        paused = yield from paused_in(keys, most - len(names))
        names += [name for name in paused if name not in names]
    for index in ("blocked", "holders"):
        names += yield from scopes_in(keys(index), most - len(names), {*names})
    names += weights[: most - len(names)]
    wanted = list(dict.fromkeys([*names, *map(family_of, names)]))
    pages = [wanted[at : at + PAGE] for at in range(0, len(wanted), PAGE)]
    found = yield from ask(
        tasks=["HGETALL", keys("tasks")], caps=[["HMGET", keys("caps"), *page] for page in pages]
    )
    texts = (text for page in found.caps for text in page)
    entries = entries_of(keys.queue, zip(wanted, texts, strict=True))
    keyless = {name for text in pairs_of(found.tasks).values() for name in keyless_in(text)}
    statuses = (yield from _statuses(keys, names, entries, counted)) if names else []
    return [each._replace(keyless=each.scope in keyless) for each in statuses]


def _limited(keys: QueueKeys, most: int, read_max: int) -> Steps[tuple[list[str], list[str]]]:
    """Return two lists: the scopes and families that have a limit of their own, and the keys that have a weight (their
    share in a fair queue). Each list has at most ``most`` names.

    The read ends after about ``read_max`` stored limits. So a queue with very many weights costs little, but some names
    may be missing.
    """
    names: set[str] = set()
    weights: set[str] = set()
    cursor = ""
    while cursor != "0" and len(names) < most and len(names) + len(weights) < read_max:
        ((cursor, flat),) = yield [["HSCAN", keys("caps"), cursor or "0", "COUNT", PAGE]]
        cursor = str(cursor)
        for name in pairs_of(flat):
            (weights if family_of(name) == WEIGHT else names).add(name)
    return sorted(names)[:most], sorted(weights)[:most]


def _statuses(
    keys: QueueKeys, names: Sequence[str], entries: dict[str, CapEntry], most: int
) -> Steps[list[ScopeStatus]]:
    """Return the status of each scope in ``names``. The number of round trips does not depend on the number of
    scopes."""
    # Few have a limit of their own, and many lanes wait for those; many are keys, and few wait for one.
    stored = sum(name in entries for name in names)
    shares = [most // 2 // max(1, n) for n in (len(names) - stored, stored)]
    bounds = [max(10, shares[name in entries]) for name in names]
    blocked = [of_scope(name, bound + 1) for name, bound in zip(names, bounds, strict=True)]
    first = yield from ask(
        now=["TIME"],
        running=["ZCARD", keys("leases")],
        held=within(keys("holders"), map(of_scope, names)),
        blocked=within(keys("blocked"), blocked),
        resumes=resumes_in(keys, names),
        spent=spent_in(keys, names),
        opened=["ZRANGE", keys("open"), 0, 0],
    )
    now_ms, held = time_ms(first.now), dict(zip(names, answers(first.held), strict=True))
    if QUEUE in held:
        held[QUEUE] = first.running
    of_name = dict(zip(names, answers(first.blocked), strict=True))
    lanes = {
        name: [job_of(member) for member in of_name[name][:bound]]
        for name, bound in zip(names, bounds, strict=True)
    }
    at_gate = _is_full(entries.get(QUEUE), held.get(QUEUE, 0))
    if at_gate:
        # No lane is blocked on a full queue: all ready jobs wait for it.
        lanes[QUEUE] = list(first.opened)
    counted = list(dict.fromkeys(lane for each in lanes.values() for lane in each))
    # Of the lanes of one priority, the first has the oldest job.
    firsts = [
        (name, lane)
        for name, each in lanes.items()
        for lane in {lane[:1]: lane for lane in reversed(each)}.values()
    ]
    rates = [
        (name, scope)
        for name in names
        if is_rate(name) and "=" not in name
        for scope in dict.fromkeys(m.partition("|")[0] for m in of_name[name][:RATES_MAX])
    ]
    unread = [scope for _, scope in rates if scope not in held]
    lists = [keys(f"ready:{n}") for n in range(len(PRIORITIES))] if at_gate else []
    then = yield from ask(
        counts=within(keys("waiting"), map(of_lane, counted)),
        heads=within(keys("waiting"), [of_lane(lane, 1) for _, lane in firsts]),
        rates=resumes_in(keys, [scope for _, scope in rates]),
        spent=spent_in(keys, unread),
        lists=[["LINDEX", key, 0] for key in lists],
        ready=[
            *(["LLEN", key] for key in lists),
            *([["ZCARD", keys("waiting")]] if at_gate else []),
        ],
    )
    heads = [
        (name, job_of(head[0]))
        for (name, _), head in zip(firsts, answers(then.heads), strict=True)
        if head
    ]
    heads += [(QUEUE, job_id) for job_id in then.lists if job_id]
    jobs, _ = yield from jobs_of(keys, [job_id for _, job_id in heads])
    since = {job.id: job.since_ms for job in jobs if job.since_ms is not None}
    waits: dict[str, int] = {}
    for name, job_id in heads:
        if job_id in since:
            waits[name] = max(waits.get(name, 0), now_ms - since[job_id])
    resumes = dict(zip(names, answers(first.resumes), strict=True))
    spent = dict(zip(names, answers(first.spent), strict=True))
    spent_at_resume = dict(spent)
    of_keys = spent | dict(zip(unread, answers(then.spent), strict=True))
    for (family, scope), score in zip(rates, answers(then.rates), strict=True):
        if score is not None and (resumes[family] is None or float(score) < float(resumes[family])):
            resumes[family], spent_at_resume[family] = score, of_keys[scope]
    waiting = dict(zip(counted, answers(then.counts), strict=True))
    result = []
    for name, bound in zip(names, bounds, strict=True):
        own, entry = entries.get(name), _entry_of(entries, name)
        limit = entry.limit if entry else NO_LIMIT
        result.append(
            ScopeStatus(
                name,
                limit,
                entry.version if entry else 0,
                "none" if entry is None else "family" if own is None else own.source,
                held[name],
                sum(then.ready) if name == QUEUE else sum(waiting[lane] for lane in lanes[name]),
                waits.get(name),
                resume_of(name, resumes[name], spent_at_resume.get(name), limit, now_ms),
                partial=len(of_name[name]) > bound,
                set_by=own.by if own else None,
                set_at_ms=own.at_ms if own else None,
                declared=own.declared if own else None,
                now_ms=now_ms,
                use=use_of(name, spent.get(name), limit, now_ms),
            )
        )
    return result


# One job.


def _standing(keys: QueueKeys, job: JobState) -> Steps[Standing]:
    lane, ready = job.fields.get("lane", ""), job.state is State.READY
    first = yield from ask(
        place=[["HGET", keys("lanes"), lane]] if lane else [],
        behind=["ZLEXCOUNT", keys("waiting"), f"[{lane}|", f"({lane}|{_seq(job):016d}|{job.id}"],
        facts=["HMGET", keys("meta"), "paused", "fair"],
        gate=["HGET", keys("caps"), QUEUE],
        running=["ZCARD", keys("leases")],
    )
    paused, fair = first.facts
    word, scope = _place(*first.place) if ready and lane else ("", None)
    gate = entries_of(job.queue, [(QUEUE, first.gate)]).get(QUEUE)
    if ready and _is_full(gate, first.running):
        scope = QUEUE
    found = Standing(job, lane, word, scope, NO_LIMIT, 0, (), None, 0, paused == "1")
    if scope is not None:
        found = yield from _with_scope(keys, found, scope)
    if ready and fair != "1" and (word == "open" or not lane):
        ahead, at_least = yield from _ahead(keys, job, lane)
        return found._replace(ahead=ahead, ahead_in="queue", ahead_at_least=at_least)
    return found._replace(ahead=int(first.behind), ahead_in="lane") if word else found


def _with_scope(keys: QueueKeys, standing: Standing, scope: str) -> Steps[Standing]:
    """Return ``standing`` with data about the scope for which the job waits: its limit, the jobs that hold it, and the
    time at which a used-up rate admits jobs again."""
    names, last = (scope, family_of(scope)), HOLDERS_SHOWN - 1
    found = yield from ask(
        caps=["HMGET", keys("caps"), *names],
        held=count_of_holders(keys, scope),
        some=["ZRANGE", keys("leases"), 0, last]
        if scope == QUEUE
        else ["ZRANGEBYLEX", keys("holders"), *of_scope(scope)[:2], "LIMIT", 0, HOLDERS_SHOWN],
        resumes=resumes_in(keys, [scope] if is_rate(scope) else []),
        spent=spent_in(keys, [scope] if is_rate(scope) else []),
        now=["TIME"],
    )
    entry = _entry_of(entries_of(keys.queue, zip(names, found.caps, strict=True)), scope)
    limit, now_ms = entry.limit if entry else NO_LIMIT, time_ms(found.now)
    ids = [job_of(member) for member in found.some]
    jobs, _ = yield from jobs_of(keys, ids)
    known = {job.id: ScopeHolder(job.id, job.fields.get("by"), job.since_ms) for job in jobs}
    return standing._replace(
        limit=limit,
        holders=int(found.held),
        shown=tuple(known.get(job_id, ScopeHolder(job_id, None, None)) for job_id in ids),
        resumes_ms=resume_of(
            scope,
            next(iter(answers(found.resumes)), None),
            next(iter(answers(found.spent)), None),
            limit,
            now_ms,
        ),
        now_ms=now_ms,
        use=use_of(scope, next(iter(answers(found.spent)), None), limit, now_ms),
    )


def _ahead(keys: QueueKeys, job: JobState, lane: str) -> Steps[tuple[int, bool]]:
    """Return the number of jobs that may run before ``job``: jobs in the lists and open lanes of the same priority and
    of higher priorities. Also return whether this number is only a lower bound."""
    rank, seq = _rank(job), _seq(job)
    lists = [keys(f"ready:{n}") for n in range(rank + 1)]
    # A lane's place is that of its first job: a lane after this job has no jobs before it.
    before = "-inf", f"({rank * RANK + seq}"
    found = yield from ask(
        heads=[["LRANGE", key, 0, LISTED_MAX - 1] for key in lists],
        lengths=[["LLEN", key] for key in lists],
        index=[] if lane else [["LPOS", lists[rank], job.id, "MAXLEN", PLACE_MAX]],
        lanes=["ZRANGEBYSCORE", keys("open"), *before, "LIMIT", 0, AHEAD_MAX],
    )
    own, at_least = found.heads[-1], len(found.lanes) == AHEAD_MAX
    for index in found.index:
        # A job that is not found is further behind, or was claimed meanwhile.
        at_least |= index is None and found.lengths[-1] > PLACE_MAX
        before_it = min(found.lengths[-1], PLACE_MAX) if index is None else index
        found.heads[-1], found.lengths[-1] = own[:before_it], before_it
    ids = [job_id for head in found.heads for job_id in head]
    # Cancelled jobs are in the list until claim passes over them.
    alive, _ = yield from jobs_of(keys, ids)
    beyond = sum(found.lengths) - len(ids)
    if lane:
        # A job in a lane has no place in its priority's list: their places in line are compared.
        came_first = [j for j in alive if _rank(j) < rank or _seq(j) < seq]
        beyond -= found.lengths[-1] - len(own)
        at_least |= len(own) < found.lengths[-1] and len(came_first) == len(alive)
        alive = came_first
    in_lanes = yield within(
        keys("waiting"),
        [
            of_lane(each) if int(each[0]) < rank else Range(f"[{each}|", f"({each}|{seq:016d}")
            for each in found.lanes
        ],
    )
    return len(alive) + beyond + sum(answers(in_lanes)), at_least


def _seq(job: JobState) -> int:
    """Return a job's sequence number, which decides the order of the jobs in a queue."""
    return number_in(job.fields.get("seq")) or 0


def _rank(job: JobState) -> int:
    priority = job.fields.get("priority", str(DEFAULT_PRIORITY))
    return [str(each) for each in PRIORITIES].index(priority)


def _place(text: str | None) -> tuple[str, str | None]:
    """Return the state of a lane (the waiting jobs of one priority and the same scopes): open or blocked. Also return
    the scope that blocks it. They are read from the lane's field in the key ``lanes``: ``open ORDER`` or ``blocked
    SCOPE ORDER``."""
    match (text or "").split(" "):
        case ["blocked", scope, _]:
            return "blocked", scope
        case ["open", _]:
            return "open", None
    return "", None
