"""Sets caps, rates and weights of a queue. A worker stores the limits that its code declares, when the worker starts.
Operators change limits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from rq_core import errors
from rq_core.model.events import decode
from rq_core.model.keys import DEFAULT_PREFIX, check_name, queue_keys
from rq_core.model.lib.checks import check_whole
from rq_core.model.limits.breakers import check_breaker, is_breaker
from rq_core.model.limits.limit import DECLARED, CapEntry, Limit, check_limit, shown
from rq_core.model.limits.policy import families_of
from rq_core.model.limits.scopes import (
    FAIR,
    QUEUE,
    RESERVED,
    TASK,
    TICK,
    WEIGHT,
    family_of,
    is_scope,
)
from rq_core.model.settings import BATCH_MAX
from rq_core.model.state_line import read_state_lines
from rq_core.model.table.machine import PRIORITIES
from rq_core.protocol.calls.admin import check_why
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, pairs_of, parse_pairs
from rq_core.protocol.reads.scope_reads import entries_of
from rq_core.protocol.reads.steps import read_lines

CHANGES_MAX: Final = 20
"""Maximum number of attempts to change a limit. An attempt fails if another operator changes the limit at the same
time."""
SEEN_MAX: Final = 1_000
"""Approximate number of job state lines that are searched for a task's name, to find out whether the queue knows the
task. The search also reads the same number of jobs in lists, and of entries of the outbox."""
DECLARED_WHY: Final = "declared by the app"
VERSION_MAX: Final = 1_000_000_000

_WINDOW: Final = re.compile(r"@(\d+(?:\.\d+)?)s(?::|$)")


class KeptLimit(NamedTuple):
    """A limit that a queue keeps although the code of the present worker declares another limit.

    Either an operator or other code has set the limit. Or code declared a cap of a task earlier, and the present code
    declares no cap for this task.
    """

    queue: str
    scope: str
    declared: Limit
    stored: Limit
    prefix: str = DEFAULT_PREFIX

    def __str__(self) -> str:
        given = "" if self.prefix == DEFAULT_PREFIX else f" --prefix {self.prefix}"
        return (
            f"queue {self.queue} keeps {self.scope} at {self.stored}; this code declares"
            f" {self.declared}, which `rq-core cap {self.queue} {self.scope} {shown(self.declared)}{given}` would set"
        )


class CapChange(NamedTuple):
    """The outcome of a change of a limit, and the limit that is stored now."""

    outcome: str
    """The outcome: changed; same (the limit was in force already); kept (another limit takes precedence); or conflict
    (the limit was changed meanwhile)."""
    version: int
    limit: Limit


class Caps:
    """The calls that read and change the limits of a queue."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def policy(self, queue: str, task: str) -> Plan[str | None]:
        """Return the policy that workers registered for a task, as JSON: the options that decide the scopes of its
        jobs. None if no worker registered one.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        (text,) = yield from self._delivery.ask([["HGET", keys("tasks"), task]], queue)
        return text  # type: ignore[no-any-return]

    def registered(self, queue: str) -> Plan[list[str]]:
        """Return the names of the tasks that workers have registered in a queue, sorted."""
        keys = queue_keys(queue, self._delivery.prefix)
        (names,) = yield from self._delivery.ask([["HKEYS", keys("tasks")]], queue)
        return sorted(names)

    def stored(self, queue: str) -> Plan[dict[str, CapEntry]]:
        """Return the stored limits of a queue, by name of the scope or family. (A family is all scopes of one key.)"""
        keys = queue_keys(queue, self._delivery.prefix)
        (stored,) = yield from self._delivery.ask([["HGETALL", keys("caps")]], queue)
        return {name: CapEntry.parse(text) for name, text in sorted(pairs_of(stored).items())}

    def set(
        self,
        queue: str,
        limits: Sequence[tuple[str, str, int]],
        *,
        source: str = "live",
        by: str | None = None,
        why: str = "",
    ) -> Plan[dict[str, CapChange]]:
        """Change limits. Each change is (scope, text of a Limit as Redis stores it, version). Returns the outcome by
        scope.

        ``version`` is the version of the limit that the caller has read (0: no limit was stored). If another version is
        stored, the outcome is ``conflict``. With -1, versions are not compared.

        ``source`` is ``live`` for an operator's change, and ``code`` for a limit that a task declares. A declared limit
        never replaces an operator's limit. Code also never sets again a limit that it declared before and has replaced
        since, so an old worker that starts again restores no old limit. In both cases the outcome is ``kept``.

        The text ``code`` in place of a limit restores the declared limit. If code declares no limit for a scope, the
        scope gets the limit of its family. Raises NothingDeclared if there is neither.
        """
        for name, limit, _ in limits:
            if not is_scope(name):
                raise errors.InvalidOption.of(
                    "scope",
                    name,
                    "must read queue, task=NAME, a family of keys, or FAMILY=VALUE, percent-encoded",
                )
            try:
                if limit != DECLARED:
                    Limit.parse(limit)
            except ValueError:
                raise errors.InvalidOption.of(
                    name, limit, "must be a number from 0, none, or LIMIT/WINDOWms/BURST"
                ) from None
        args = {
            "by": check_name("actor", by or self._delivery.name),
            "why": check_why(why),
            "source": source,
        }
        return (
            yield from self._delivery.call(
                Call("cap", queue, args, parse_cap_changes, tuple(limits))
            )
        )

    def register(
        self, queue: str, policies: Mapping[str, str], *, by: str | None = None
    ) -> Plan[dict[str, str]]:
        """Store the policies of tasks (JSON by task name). Producers that lack the tasks' code read them, and so give
        jobs the same scopes as producers that have the code. Returns the outcome by task: changed or same.
        """
        args = {"by": check_name("actor", by or self._delivery.name)}
        records = tuple((check_name("task", name), text) for name, text in policies.items())
        return (yield from self._delivery.call(Call("register", queue, args, parse_pairs, records)))

    def declare(
        self,
        queue: str,
        limits: Mapping[str, Limit],
        policies: Mapping[str, str],
    ) -> Plan[list[KeptLimit]]:
        """Store the limits that code declares in a queue, then the policies of the code's tasks. Returns the limits
        that the queue keeps although this code declares other limits.

        The returned limits include caps of tasks for which this code declares no cap. Other code may still declare
        these caps, so only an operator removes them. Policies that are stored already are not sent.
        """
        kept: list[KeptLimit] = []
        records = [(name, str(limit), -1) for name, limit in limits.items()]
        for at in range(0, len(records), BATCH_MAX):
            chunk = records[at : at + BATCH_MAX]
            changes = yield from self.set(queue, chunk, source="code", why=DECLARED_WHY)
            kept += [
                KeptLimit(queue, name, limits[name], change.limit, self._delivery.prefix)
                for name, change in changes.items()
                if change.outcome == "kept" and change.limit != limits[name]
            ]
        if policies:
            names = list(policies)
            keys = queue_keys(queue, self._delivery.prefix)
            scopes = [f"{TASK}={name}" for name in names]
            stored, capped = yield from self._delivery.ask(
                [["HMGET", keys("tasks"), *names], ["HMGET", keys("caps"), *scopes]], queue
            )
            for name, entry in entries_of(queue, zip(scopes, capped, strict=True)).items():
                # A limit that an operator set on a task without a cap is intended.
                if name not in limits and entry.source == "code" and entry.limit.most is not None:
                    kept.append(
                        KeptLimit(queue, name, Limit(None), entry.limit, self._delivery.prefix)
                    )
            news = {
                name: policies[name]
                for name, known in zip(names, stored, strict=True)
                if known != policies[name]
            }
            if news:
                yield from self.register(queue, news)
        return kept

    def change(
        self,
        queue: str,
        scope: str,
        limit: Limit | int | Literal["code"] | None,
        *,
        declared: Collection[str] = (),
        version: int | None = None,
        by: str | None = None,
        why: str = "",
    ) -> Plan[CapChange]:
        """Set a limit as an operator, or restore the limit that code declares.

        Without ``version``, the new limit also replaces a limit that another operator sets meanwhile; this may take up
        to CHANGES_MAX attempts. With ``version``, the change is made only if the stored limit has this version.
        ``declared`` is a set of families (a family is all scopes of one key). They exist in addition to those in the
        queue.

        Raises InvalidOption, UnknownScope, NothingDeclared, or CapConflict if another change came first.
        """
        _check_change(scope, limit, version, by, why)
        if not is_scope(scope) or family_of(scope) == FAIR:
            raise errors.InvalidOption.of(
                "scope",
                scope,
                "must read queue, task=NAME, a family of keys, or FAMILY=VALUE, percent-encoded",
            )
        for _ in range(CHANGES_MAX):
            stored = yield from self._stored(queue, scope, declared)
            wanted = DECLARED if limit == DECLARED else str(_checked(scope, limit, stored))
            known = stored[scope].version if scope in stored else 0
            expected = known if version is None else version
            changes = yield from self.set(queue, [(scope, wanted, expected)], by=by, why=why)
            made = changes[scope]
            if made.outcome != "conflict":
                return made
            if version is not None:
                break
        raise errors.CapConflict(queue=queue, scope=scope, limit=made.limit, version=made.version)

    def check_task(self, queue: str, scope: str) -> Plan[None]:
        """Raise UnknownScope if ``scope`` belongs to a task that the queue does not know. Without this check, a limit
        for a misspelt task would be stored and would count no job.

        A task is known if the queue has a cap or a policy for it, or if one of the jobs and events that this call reads
        names it.
        """
        family, _, name = scope.partition("=")
        if family.partition("@")[0] != TASK or not name:
            return
        keys = queue_keys(queue, self._delivery.prefix)
        lists = [keys(f"ready:{rank}") for rank in range(len(PRIORITIES))]
        capped, policies, (_, lines), entries, *listed = yield from self._delivery.ask(
            [
                ["HKEYS", keys("caps")],
                ["HKEYS", keys("tasks")],
                ["HSCAN", keys("state"), 0, "COUNT", SEEN_MAX],
                ["XREVRANGE", keys("outbox"), "+", "-", "COUNT", SEEN_MAX],
                *(["LRANGE", key, 0, SEEN_MAX // len(lists) - 1] for key in lists),
            ],
            queue,
        )
        waiting = [job_id for each in listed for job_id in each]
        found = yield from read_lines(self._delivery, keys, waiting)
        jobs, _ = read_state_lines(
            queue, [*pairs_of(lines).items(), *zip(waiting, found, strict=True)]
        )
        known = {name.partition("=")[2] for name in capped if name.startswith(f"{TASK}=")}
        known |= {*policies, *(job.fields.get("task", "") for job in jobs)}
        for entry_id, flat in entries:
            for event in decode(entry_id, pairs_of(flat)).jobs:
                known.add(str(event.fields.get("task", "")))
        known -= {"", "None"}
        if name not in known:
            raise errors.UnknownScope(
                f"queue {queue!r} has seen no task {name!r}: known are {', '.join(sorted(known)) or 'none'}."
                " --force sets it anyway, for a task that will be deployed later",
                queue=queue,
                scope=scope,
                known=", ".join(sorted(known)),
            )

    def _stored(
        self, queue: str, scope: str, declared: Collection[str]
    ) -> Plan[dict[str, CapEntry]]:
        """Return the stored limits of a scope and of its family (all scopes of one key). Raises UnknownScope if no job
        of the queue can have the scope.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        family = family_of(scope)
        names = [scope, family]
        texts, tasks = yield from self._delivery.ask(
            [["HMGET", keys("caps"), *names], ["HVALS", keys("tasks")]], queue
        )
        stored = entries_of(queue, zip(names, texts, strict=True))
        known = {family_of(name) for name in stored} | {*declared, QUEUE, TASK, WEIGHT, TICK}
        for policy in tasks:
            known.update(families_of(policy))
        # `queue` has no keys; of the others here, only the keys have limits.
        odd = family in (QUEUE, TASK, WEIGHT) and (family == QUEUE) == ("=" in scope)
        if odd or family not in known:
            told = ["queue", "task=NAME", *sorted(known - RESERVED)]
            raise errors.UnknownScope(queue=queue, scope=scope, known=", ".join(told))
        return stored


def _checked(scope: str, limit: Limit | int | str | None, stored: Mapping[str, CapEntry]) -> Limit:
    """Check a new limit, and return it as it must be stored. For a rate, a plain number N means N per window of the
    present rate. Raises InvalidOption.
    """
    if limit is None:
        return Limit(None)
    given = limit if isinstance(limit, Limit) else Limit(check_limit("limit", limit))
    window = _WINDOW.search(family_of(scope))
    if window is None:
        if given.window_ms is not None:
            raise errors.InvalidOption.of(
                "limit", shown(given), f"must be a number or none: {scope} is not a rate"
            )
        return _weight(given) if family_of(scope) == WEIGHT else given
    window_ms = round(float(window[1]) * 1000)
    if given.window_ms not in (None, window_ms):
        raise errors.InvalidOption.of(
            "limit",
            shown(given),
            f"must be per {window[1]}s, as {scope} is: another window is another rate, declared in"
            " code",
        )
    before = stored.get(scope) or stored.get(family_of(scope))
    if is_breaker(scope) and given.most:
        # Without a cooldown, the cooldown of the stored limit stays.
        cooldown_ms = given.burst
        if cooldown_ms == 1:
            if before is None or not before.limit.window_ms:
                must = f"must have a cooldown in ms, like {given.most}/{window[1]}s/30000"
                raise errors.InvalidOption.of("limit", shown(given), must)
            cooldown_ms = before.limit.burst
        check_breaker(given.most, cooldown_ms, names=("limit", "cooldown"))
        return Limit(given.most, window_ms, cooldown_ms)
    if given.window_ms is not None or not given.most:
        return given
    return Limit(given.most, window_ms, before.limit.burst if before else 1)


def _weight(limit: Limit) -> Limit:
    if not limit.most:
        raise errors.InvalidOption.of("limit", str(limit), "must be a weight, 1 or more")
    return limit


def parse_cap_changes(reply: Sequence[Any]) -> dict[str, CapChange]:
    return {
        reply[at]: CapChange(reply[at + 1], int(reply[at + 2]), Limit.parse(reply[at + 3]))
        for at in range(0, len(reply), 4)
    }


def _check_change(scope: object, limit: object, version: object, by: str | None, why: str) -> None:
    """Raise InvalidOption or InvalidName for invalid arguments of a change, before anything is read."""
    if not isinstance(scope, str):
        must = "must be text: queue, task=NAME, a family of keys, or FAMILY=VALUE"
        raise errors.InvalidOption.of("scope", scope, must)
    if limit is not None and limit != DECLARED and not isinstance(limit, Limit):
        check_limit("limit", limit)
    if version is not None:
        check_whole("version", version, 0, VERSION_MAX)
    if by is not None:
        check_name("actor", by)
    check_why(why)
