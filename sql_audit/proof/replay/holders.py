"""Replays caps and rates: counts the claims that hold each scope, and checks whether each claim was allowed (invariant
I3).

A scope is what a cap or a rate counts: the queue, a task, or one value of a key (``tenant=acme``). A ``claimed`` event
names every scope of the claim, with the limit in force. So the log shows whether the claim was allowed: a scope's
holders, the new claim included, must be at most the cap. The limits in claims must agree with those in ``cap_changed``
events.

This module does no I/O: :mod:`sql_audit.proof.replay.replay` calls it with the events in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.limits.breakers import is_breaker
from rq_core.model.limits.costs import cost_of
from rq_core.model.limits.limit import Limit, Spent
from rq_core.model.limits.scopes import QUEUE, family_of, is_counted, is_rate, scopes_of, unit_of
from sql_audit.proof.replay.breakers import Breakers
from sql_audit.store.job_rows import EventRow

TOLERANCE_US: Final = 1_000
"""Microseconds by which a claim may come before its rate allows it, since events have their times in whole ms."""

AGREED_MAX: Final = 100_000
"""Maximum number of combinations of task, lane and event detail for which the cache notes that their limits are
right."""

_TASK: Final = "task="


class ClaimScopes(NamedTuple):
    """The scopes of one claim (what caps and rates count, such as ``tenant=acme``) with their limits, from the
    ``claimed`` event.
    """

    held: tuple[str, ...]
    """The scopes of keys, such as ``tenant=acme``, in which the claim counts as a holder. It also counts in the scopes
    of its queue and task, which are left out."""
    caps: tuple[tuple[str, int], ...]
    """Pairs of (scope, cap in force)."""
    rates: tuple[tuple[str, int, int, int, int], ...]
    """Tuples of (scope, limit, window in ms, burst, cost)."""
    breakers: tuple[tuple[str, Limit], ...]
    """Pairs of (scope of a breaker, its limit)."""
    limits: dict[str, str]
    """By scope: its limit as text; "none" for a scope without a limit."""

    @classmethod
    def read(cls, scopes: Sequence[Sequence[Any]] | None) -> ClaimScopes:
        """Parse the scopes in the JSON of a ``claimed`` event. Raise ValueError or TypeError if they are not valid."""
        held, caps, rates, breakers, limits = [], [], [], [], {}
        for scope, *facts in scopes or ():
            if type(scope) is not str:
                raise TypeError(f"scope {scope!r}")
            if len(facts) in (3, 4):
                most, window_ms, burst, cost = map(_number, (*facts, 1)[:4])
                if is_breaker(scope):
                    breakers.append((scope, Limit(most, window_ms, burst)))
                else:
                    rates.append((scope, most, window_ms, burst, cost))
                limits[scope] = str(Limit(most, window_ms, burst))
                continue
            (cap,) = facts
            limits[scope] = "none" if cap is None else str(_number(cap))
            if cap is not None:
                caps.append((scope, cap))
            if is_counted(scope) and scope != QUEUE and not scope.startswith(_TASK):
                held.append(scope)
        return cls(tuple(held), tuple(caps), tuple(rates), tuple(breakers), limits)


NOTHING: Final = ClaimScopes((), (), (), (), {})


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a limit")
    return value


def held_in(lane: str | None) -> tuple[str, ...]:
    """Return the scopes of keys in a lane's name (a priority and scopes), such as ``tenant=acme``. The task's scope is
    left out. The claims of the lane's jobs count in these scopes.
    """
    scopes = scopes_of(lane or "")
    return tuple(s for s in scopes if is_counted(s) and not s.startswith(_TASK))


class Limits:
    """The limits of caps and rates in force, according to the ``cap_changed`` events."""

    def __init__(self) -> None:
        self.whole = False
        """True if the log has every change of a limit, so that a scope without a change has no limit. If False, such a
        scope's limit is unknown."""
        self.known: dict[str, tuple[str, int]] = {}
        """By scope, or by family (all scopes of a key): a pair of the limit as text and its version."""

    def change(self, scope: str, old: str | None, new: str | None, version: int) -> Iterator[str]:
        """Apply a change of a scope's or family's limit, from an event ``cap_changed``. Yield the faults of the event.

        ``new=None`` removes the scope's own limit, so that the limit of its family (all scopes of a key) is in force.
        """
        before = self.known.get(scope)
        if before is not None or self.whole:
            text, last = before or (None, 0)
            if version != last + 1:
                yield f"version {version} of the limit of {scope} follows version {last}"
            if old != text:
                yield f"the limit of {scope} was {text or 'unset'}, the event says {old or 'unset'}"
        if new is None:
            self.known.pop(scope, None)
        else:
            self.known[scope] = new, version

    def of(self, scope: str) -> str | None:
        """Return the limit of a scope that is in force, as text; "none" if it has no limit. Return None if the log does
        not show it.
        """
        own = self.known.get(scope)
        if own is not None:
            return own[0]
        if not self.whole:
            return None
        family = self.known.get(family_of(scope))
        return "none" if family is None else family[0]


class Holders:
    """How many claims hold each scope, and how much of each rate is in use, at one moment of the replay. (A scope is
    what a cap or a rate counts, such as ``tenant=acme``.)
    """

    def __init__(self) -> None:
        self.limits = Limits()
        self.breakers = Breakers()
        self.forget()

    def forget(self) -> None:
        """Forget all holders, limits and rates, because the log lacks events."""
        self.total = 0
        self.tasks: Counter[str | None] = Counter()
        self.keys: dict[str, int] = {}
        self.limits.known.clear()
        self.limits.whole = False
        self.forget_rates()
        self._agreed: set[tuple[str | None, str | None, str | None]] = set()

    def forget_rates(self) -> None:
        """Forget the use of all rates, because later events may have the times of another clock."""
        self.breakers.forget()
        self.paused_by: dict[str, str] = {}
        """The operator who paused a scope, by scope."""
        self._paused: dict[str, int] = {}
        """Unix ms at which the pause of a scope ends, by scope."""
        self._changed: set[str] = set()
        """The paused scopes whose rate was changed during the pause. Redis may have forgotten such a pause when, under
        the earlier limit, nothing of the rate would have been in use any more."""
        self._rates: dict[str, tuple[int, int, int, int, int]] = {}
        """How much of each rate is in use, by scope. Each value is a tuple (time, limit, window, burst, fraction).

        The time is the theoretical arrival time of the generic cell rate algorithm, in whole Unix µs. It was computed
        with this limit, window (ms) and burst. The fraction is the part of the time below 1 µs, as a numerator over the
        limit."""
        self._owed: dict[str, tuple[int, int, int, int, int]] = {}
        """By scope, a tuple as in ``_rates``: the use of the rate when its limit changed, and what jobs have taken
        since. Only :meth:`spent` reads this, because the log does not show when Redis converted the use to the new
        limit."""
        self._rates_max = 1_000

    def hold(self, task: str | None, held: Sequence[str]) -> None:
        """Count a new claim as a holder of its scopes. ``held`` are the claim's scopes of keys, such as
        ``tenant=acme``; the scopes of the queue and of the task are counted, too.
        """
        self.total += 1
        self.tasks[task] += 1
        keys = self.keys
        for scope in held:
            keys[scope] = keys.get(scope, 0) + 1

    def release(self, task: str | None, held: Sequence[str]) -> None:
        """Stop counting an ended claim as a holder of its scopes."""
        self.total -= 1
        self.tasks[task] -= 1
        if not self.tasks[task]:
            del self.tasks[task]
        keys = self.keys
        for scope in held:
            left = keys[scope] - 1
            if left:
                keys[scope] = left
            else:
                del keys[scope]

    def of(self, scope: str) -> int:
        """Return the number of claims that hold a scope."""
        if scope == QUEUE:
            return self.total
        if scope.startswith(_TASK):
            return self.tasks.get(scope[len(_TASK) :], 0)
        return self.keys.get(scope, 0)

    def breaches(self, listed: ClaimScopes, at_ms: int) -> Iterator[str]:
        """Yield a sentence for each cap or rate that a claim exceeds, and for each pause of a rate in which it began.
        Before, call :meth:`hold` with the claim.
        """
        for scope, cap in listed.caps:
            holders = self.of(scope)
            if holders > cap:
                yield f"{holders} hold {scope}, its cap is {cap}"
        for rate in listed.rates:
            until_ms = self._paused.get(rate[0]) if self._paused else None
            if until_ms is not None and at_ms < until_ms:
                yield f"claimed {until_ms - at_ms} ms before the pause of {rate[0]} ends"
            elif until_ms is not None:
                self._end_pause(*rate[:4])
            if problem := self._spend(*rate, at_ms=at_ms):
                yield problem

    def disagreements(
        self, task: str | None, lane: str | None, text: str | None, listed: ClaimScopes
    ) -> list[str]:
        """Return a sentence for each scope whose limit in a claim differs from the limit in ``cap_changed`` events.

        ``lane`` is the job's lane (priority and scopes), and ``text`` is the detail of the claim's event. Details
        without a difference are cached.
        """
        key = task, lane, text
        if key in self._agreed:
            return []
        scopes = {QUEUE, *scopes_of(lane or ""), *listed.limits}
        if task is not None:
            scopes.add(_TASK + task)
        found = []
        for scope in sorted(s for s in scopes if is_counted(s) or is_rate(s)):
            stored, carried = self.limits.of(scope), listed.limits.get(scope, "none")
            if stored is not None and stored != carried:
                found.append(f"the claim says {scope} ≤ {carried}, stored is {stored}")
        if not found:
            if len(self._agreed) >= AGREED_MAX:
                self._agreed.clear()
            self._agreed.add(key)
        return found

    def wrong_costs(self, costs: str | None, listed: ClaimScopes) -> Iterator[str]:
        """Yield a sentence for each rate for which the claim has another cost than the job. (The cost is how much the
        job takes from the rate.)

        ``costs`` are the job's costs, as text; None: 1 each.
        """
        for scope, _, _, _, cost in listed.rates:
            try:
                known = cost_of(costs, scope)
            except ValueError:
                yield f"the job has {costs!r}, and these are no costs"
                return
            if cost != known:
                yield f"the claim says that it takes {cost} from {scope}, the job costs {known}"

    def pause(
        self, scope: str, until_ms: int, record: object | None = None, row: EventRow = ()
    ) -> bool:
        """Note that a scope is paused until ``until_ms`` (Unix ms). Return False if a pause that is already in force
        ends later.

        ``record`` is the job that paused the scope; None: an operator paused it. ``row`` is the event.
        """
        if is_breaker(scope):
            return self.breakers.pause(scope, until_ms, record, row)
        self._changed.discard(scope)
        is_longer = until_ms >= self._paused.get(scope, 0)
        self._paused[scope] = max(until_ms, self._paused.get(scope, 0))
        return is_longer

    def resume(self, scope: str) -> None:
        """Note that an operator has ended the pause of a scope."""
        self._paused.pop(scope, None)
        self.paused_by.pop(scope, None)
        if is_breaker(scope):
            self.breakers.open(scope)

    def limit_of(self, scope: str) -> Limit | None:
        """Return the limit of a scope that is in force; None if the log does not show it."""
        text = self.limits.of(scope)
        return None if text is None else Limit.parse(text)

    def spent(self) -> Iterator[tuple[str, Spent]]:
        """Yield each rate that is in use or paused: its scope, and its value in the format of Redis' key ``rates``."""
        for scope in {*self._rates, *self._paused, *self._owed}:
            known = self._rates.get(scope, (0, 0, 0, 0, 0))
            arrival_us, most, window_ms, burst, rest = max(known, self._owed.get(scope, known))
            limit = Limit(most, window_ms, burst) if most else self.limit_of(scope)
            if limit is not None and limit.most and limit.window_ms:
                paused = self._paused.get(scope), self.paused_by.get(scope)
                yield scope, Spent(arrival_us, rest, str(limit), 0, *paused)

    def fail(
        self, record: object, scopes: Collection[str] | None, facts: Mapping[str, Any], at_ms: int
    ) -> Iterator[str]:
        """Apply a job's failure to the breakers that count it, and yield a sentence for each fault.

        ``scopes`` are the scopes of the job's breakers; None: not known. The failure is judged by the limit in force.
        If the log does not show this limit, the limit in the last claim is used.
        """
        if scopes is None:
            self.breakers.doubt(at_ms)
            scopes = ()
        limits = {
            scope: self.limit_of(scope) or self.breakers.limits.get(scope) for scope in scopes
        }
        yield from self.breakers.fail(limits, record, facts, at_ms)

    def correct(self, scope: str, more: int, at_ms: int) -> None:
        """Correct how much of a rate is in use, because a worker reported a job's real cost. ``more`` is this cost
        minus the cost in the job's claim; it may be negative.
        """
        now_us = at_ms * 1000
        known = self._rates.get(scope)
        if known is None:
            limit = self.limit_of(scope)
            if limit is None or not limit.most or not limit.window_ms or is_breaker(scope):
                return
            known = now_us, limit.most, limit.window_ms, limit.burst, 0
        arrival, most, window_ms, burst, rest = known
        if arrival < now_us:
            arrival, rest = now_us, 0
        used, rest = divmod(rest + more * window_ms * 1000, most)
        arrival += used
        if arrival < now_us:
            arrival, rest = now_us, 0
        self._rates[scope] = arrival, most, window_ms, burst, rest
        self._owe(scope, most, window_ms, burst, more, now_us)

    def forget_units(self, units: Collection[str], known: Collection[str]) -> None:
        """Forget how much is in use of each rate that counts one of these units (such as tokens), except the rates in
        ``known``.

        A job has reported its real costs, and the log does not show whether the job also takes from these rates.
        """
        for use in (self._rates, self._owed):
            for scope in [s for s in use if s not in known and unit_of(s) in units]:
                del use[scope]

    def change(self, scope: str, old: Any, new: Any, version: Any, at_ms: int) -> list[str]:
        """Apply a change of a scope's limit, and return the faults of the event."""
        self._agreed.clear()
        # The log does not show how much of the new rate is in use: claims are judged as if the rate were unused.
        for spent in [s for s in self._rates if scope in (s, family_of(s))]:
            used = self._rates.pop(spent)
            self._owed[spent] = max(used, self._owed.get(spent, used))
        self._owed = {s: owed for s, owed in self._owed.items() if owed[0] > at_ms * 1000}
        self._changed.update(s for s in self._paused if scope in (s, family_of(s)))
        before, now = (None if limit is None else str(limit) for limit in (old, new))
        if is_breaker(scope):
            self.breakers.change(scope, before, now, at_ms)
        return list(self.limits.change(scope, before, now, int(version)))

    def _end_pause(self, scope: str, most: int, window_ms: int, burst: int) -> None:
        """End the pause of a rate. As in Redis, all of the burst except 1 then counts as used, so that jobs begin one
        after the other.
        """
        ahead_us = (burst - 1) * window_ms * 1000 // max(most, 1)
        empty_until_us = self._paused.pop(scope) * 1000 + ahead_us
        known = self._rates.get(scope)
        if scope in self._changed:
            self._changed.remove(scope)
        elif known is None or known[0] < empty_until_us:
            self._rates[scope] = empty_until_us, most, window_ms, burst, 0

    def _owe(
        self,
        scope: str,
        most: int,
        window_ms: int,
        burst: int,
        cost: int,
        now_us: int,
        ahead_max_us: int | None = None,
    ) -> None:
        """Add a cost to the use that a rate has from before a change of its limit (``_owed``). First convert this use
        to the limit in force, as Redis does. Drop it when it is used up by time.

        ``ahead_max_us`` limits the use before the cost is added, as a time in µs; None: no maximum.
        """
        owed = self._owed.pop(scope, None)
        if owed is None or unit_of(scope) is None or owed[0] <= now_us:
            return
        arrival, most_then, window_then_ms, burst_then, rest = owed
        if (most_then, window_then_ms, burst_then) != (most, window_ms, burst):
            ahead_us = -(-(arrival - now_us) * most_then * window_ms // (window_then_ms * most))
            arrival, rest = now_us + ahead_us, 0
        if ahead_max_us is not None and arrival > now_us + ahead_max_us:
            arrival, rest = now_us + ahead_max_us, 0
        used, rest = divmod(rest + cost * window_ms * 1000, most)
        if arrival + used > now_us:
            self._owed[scope] = arrival + used, most, window_ms, burst, rest

    def _spend(
        self, scope: str, most: int, window_ms: int, burst: int, cost: int, *, at_ms: int
    ) -> str | None:
        """Count a claim against a rate, by the generic cell rate algorithm.

        Return a sentence if the rate is 0, or if the claim came more than TOLERANCE_US too early; otherwise None. A
        claim needs as much of the rate as it costs, but never more than the burst.
        """
        if most == 0:
            return f"claimed under {scope}, which is stopped"
        now_us = at_ms * 1000
        rate = most, window_ms, burst
        window_us = window_ms * 1000
        arrival, rest = now_us, 0
        known = self._rates.get(scope)
        problem = None
        if known is not None and known[1:4] == rate:
            if known[0] >= now_us:
                arrival, rest = known[0], known[4]
            interval = window_us // most
            room_us = (burst - 1) * (interval + 1)
            if unit_of(scope) is not None:
                room_us = ((burst - min(cost, burst)) * window_us - rest) // most
            early_us = known[0] - room_us - now_us
            if early_us > TOLERANCE_US:
                takes = "" if cost == 1 else f" to take {cost:,}"
                problem = (
                    f"claimed {early_us / 1000:.0f} ms too early for {scope}{takes}: "
                    f"{most} per {window_ms} ms, {burst} at once"
                )
        if unit_of(scope) is None:
            self._rates[scope] = arrival + window_us // most, *rate, 0
        else:
            # As the script: nothing is rounded.
            used, rest = divmod(rest + cost * window_us, most)
            self._rates[scope] = arrival + used, *rate, rest
        # Redis had room for the claim.
        room_us = (burst - min(cost, burst)) * window_us // most
        self._owe(scope, *rate, cost, now_us, room_us)
        if len(self._rates) > self._rates_max:
            # A rate whose arrival time is over admits claims as if it had never been used.
            self._rates = {s: kept for s, kept in self._rates.items() if kept[0] > now_us}
            self._rates_max = max(1_000, 2 * len(self._rates))
        return problem
