"""Assigns a lane to each job, by the job's scopes.

A lane is the waiting line of the jobs with the same scopes and priority. Each cap of a task becomes a *source*: a rule
that computes the scope of a job from the job's arguments. A :class:`Placing` has all sources of a task. In a process
with the task's code, it is made from the limits in the code. In other processes, it is made from the policy (JSON) that
workers have registered for the task.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rq_core.app.limits.costs import costs_of, given_cost
from rq_core.errors import ArgumentsInvalid, InvalidOption, KeyFailed, KeyNeeded, QueueDamaged
from rq_core.model.limits.costs import costs_text
from rq_core.model.limits.policy import (
    Naming,
    ScopeSource,
    read_naming,
    read_options,
    read_policy,
    write_policy,
)
from rq_core.model.limits.scopes import (
    KEY_MAX,
    RESERVED,
    encode_key,
    family_of,
    is_scope,
    lane_name,
    scopes_of,
    unit_of,
)

CACHED_S: Final = 5.0
"""Seconds for which a producer uses a task's policy (its options and caps) after reading it from Redis. If the policy
changes during this time, workers move jobs that were put into a wrong lane."""
CACHED_MAX: Final = 1_000


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:~-]*")


class Placing:
    """Computes which scopes (counted groups) a task's jobs in one queue belong to, and so in which lane (waiting line)
    each job waits."""

    __slots__ = ("costly", "defaults", "naming", "options", "queue", "sources", "task")

    def __init__(
        self,
        task: str,
        queue: str,
        sources: Sequence[ScopeSource] = (),
        defaults: Mapping[str, Any] | None = None,
        naming: Naming | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """``defaults`` are the defaults of the task's arguments, for functions that compute keys and costs.

        ``naming`` is the rule for unique names; None if the jobs have none. ``options`` are the default values of
        JobOptions for the task's jobs.
        """
        self.options = options or {}
        self.task = task
        self.queue = queue
        self.naming = naming
        self.sources: tuple[ScopeSource, ...] = ()
        self.costly: tuple[ScopeSource, ...] = ()
        """The sources (rules) of the task's rates that count a unit, such as tokens, in place of jobs."""
        self.defaults = defaults or {}
        self.set_sources(sources)

    def set_sources(self, sources: Sequence[ScopeSource]) -> None:
        """Replace the sources, the rules that compute the scopes of a job. The task and its aliases share this Placing,
        so all of them use the new sources."""
        # In the order of lanes, so that a lane is joined without sorting.
        self.sources = tuple(sorted(sources, key=lambda s: (s.family != "task", s.family + "=")))
        self.costly = tuple(source for source in self.sources if source.cost)

    @property
    def rules(self) -> bool:
        """True if an enqueue checks whether a scope of the job is full, because a cap has on_full="discard",
        on_full="reject" or max_waiting."""
        return any(s.on_full != "wait" or s.max_waiting is not None for s in self.sources)

    def check_delay(self, delay_ms: int, due_ms: int = 0) -> None:
        """Raise InvalidOption for a delayed job if an enqueue checks whether a scope of the job is full.

        The check would come too early for a delayed job, since the scope may become full before the job is due.
        """
        if (delay_ms or due_ms) and self.rules:
            raise InvalidOption.of(
                "at" if due_ms else "delay",
                (due_ms or delay_ms) / 1000,
                f"does not go with caps of task {self.task!r} that say discard, reject or max_waiting:"
                " they decide when a job is enqueued. Leave it out, or let the caps say wait",
            )

    def lane(
        self, rank: int, values: Mapping[str, Any], keys: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Return a job's lane (its waiting line), and the text of its rules for full scopes (see full_rules).

        Both texts are empty for a job that no cap counts. ``rank`` is the number of the job's priority, and ``values``
        are the job's validated arguments. ``keys`` has the keys that the producer passes because it lacks the functions
        that compute them, by the name of the cap. Raises ArgumentsInvalid, InvalidOption, KeyNeeded or KeyFailed.
        """
        if keys:
            keys = self._check_keys(keys)
        scopes, rules = [], []
        most: int | None = None
        for source in self.sources:
            scope = source.scope or self._scope(source, values, keys)
            if scope is None:
                continue
            scopes.append(scope)
            if source.on_full != "wait":
                rules.append(
                    (source.on_full, scope if source.most is None else f"{scope}|{source.most}")
                )
            if source.max_waiting is not None:
                most = source.max_waiting if most is None else min(most, source.max_waiting)
        if not scopes:
            return "", ""
        full = full_rules([*rules, *([("most", most)] if most is not None else [])])
        return f"{rank}+{'+'.join(scopes)}", full

    def costs(
        self, lane: str, values: Mapping[str, Any], keys: Mapping[str, str] | None = None
    ) -> str:
        """Return the costs of a job as text (see ``rq_core.model.limits.costs.costs_text``).

        The text is empty if none of the job's rates counts a unit, such as tokens. ``lane`` is the job's lane. For
        ``values`` and ``keys`` see :meth:`lane`. Raises ArgumentsInvalid, KeyNeeded or KeyFailed.
        """
        if not self.costly:
            return ""
        whole = {**self.defaults, **values}
        return costs_of(
            self.task, self.queue, self.costly, scopes_of(lane), whole, key_texts(keys or {})
        )

    def moved(self, lane: str, rank: int, values: Mapping[str, Any]) -> str | None:
        """Return the lane (waiting line) into which a claimed job must move, because its producer did not know the
        task's present caps. Return None if ``lane`` has all scopes that count the job now.

        A lane with further scopes needs no change: these scopes are no longer declared. The lane may also have a key
        that the producer passed by itself, because it did not have the function that computes the key.
        """
        wanted: list[str] = []
        for source in self.sources:
            scope: str | None = source.scope
            if source.function is not None:
                given = [s for s in scopes_of(lane) if family_of(s) == source.family]
                scope = given[0] if given else self._scope(source, values, None)
            elif not scope:
                scope = self._scope(source, values, None)
            if scope is not None:
                wanted.append(scope)
        if lane[2:] == "+".join(wanted):  # The usual case.
            return None
        has = scopes_of(lane)
        if all(scope in has for scope in wanted):
            return None
        return lane_name(int(lane[0]) if lane else rank, wanted)

    def policy(self) -> str:
        """Return the task's policy as JSON: the rules for caps and unique names, and the options. Producers without the
        task's code need the policy."""
        return write_policy(self.sources, self.naming, self.options)

    def _scope(
        self, source: ScopeSource, values: Mapping[str, Any], keys: Mapping[str, str] | None
    ) -> str | None:
        what = source.argument
        if what:
            value = values.get(what)
            if type(value) is str and len(value) <= KEY_MAX and _PLAIN.fullmatch(value):
                return f"{source.family}={value}"
            text = self._text(what, value) if what in values else source.default
        elif keys is not None and source.family in keys:
            what, text = f"keys[{source.family!r}]", keys[source.family]
        elif source.function is None:
            raise KeyNeeded(
                task=self.task, queue=self.queue, family=source.family.partition("@")[0]
            )
        else:
            what = source.family
            text = self._text(what, self._call(source, source.function, values))
        if text is None:
            text = source.otherwise
        return None if text is None else f"{source.family}={self._encoded(what, text)}"

    def _call(
        self, source: ScopeSource, function: Callable[..., Any], values: Mapping[str, Any]
    ) -> Any:
        try:
            return function(**{**self.defaults, **values})
        except Exception as error:
            from rq_core.app.handlers.redaction import message_of

            raise KeyFailed(
                task=self.task,
                family=source.family,
                function=source.function_name,
                error=f"{type(error).__name__}: {message_of(error)}",
            ) from error

    def _text(self, what: str, value: Any) -> str | None:
        try:
            return key_text(value)
        except TypeError as error:
            raise self._invalid(what, str(error)) from None

    def _encoded(self, what: str, text: str) -> str:
        try:
            encoded = text if _PLAIN.fullmatch(text) else encode_key(text)
        except UnicodeEncodeError:
            raise self._invalid(
                what, "is not valid Unicode text (it holds a lone surrogate)"
            ) from None
        if len(encoded) > KEY_MAX:
            raise self._invalid(
                what,
                f"a cap's key takes at most {KEY_MAX} characters percent-encoded, this one takes"
                f" {len(encoded)}: use a shorter key, or per= a function that returns a digest of it",
            )
        return encoded

    def _invalid(self, what: str, problem: str) -> ArgumentsInvalid:
        return ArgumentsInvalid(
            task=self.task, problems=f"{what}: {problem}", fields={what: problem}
        )

    def _check_keys(self, keys: Mapping[str, str]) -> dict[str, str]:
        """Return ``keys`` by the full name (family) of a cap or rate. Raises InvalidOption for a key that the task does
        not compute with a function.

        A name in ``keys`` may leave out the window of a rate: ``send.tenant`` means all rates of this name, with any
        window.
        """
        families = [s.family for s in self.sources if s.function_name or s.function]
        units = {s.cost for s in self.costly if s.cost_is_computed}
        found: dict[str, str] = {}
        for name, value in key_texts(keys).items():
            if name in units:
                continue
            meant = [f for f in families if name in (f, f.partition("@")[0])]
            if not meant:
                known = ", ".join(sorted({*(f.partition("@")[0] for f in families), *units}))
                raise InvalidOption.of(
                    "keys",
                    keys,
                    f"must name {known or 'none'}: the keys that task {self.task!r} takes from a"
                    " function; its other keys and costs are arguments",
                )
            found |= dict.fromkeys(meant, value)
        return found


class Unregistered(Placing):
    """Chooses the lanes (the waiting lines) for jobs of a task that no worker has registered yet. It takes the keys and
    costs of each job from the producer.

    The worker that claims a job decides how many attempts the job has.
    """

    def __init__(self, task: str, queue: str) -> None:
        super().__init__(task, queue, options={"max_attempts": None, "max_losses": None})

    def lane(
        self, rank: int, values: Mapping[str, Any], keys: Mapping[str, str] | None = None
    ) -> tuple[str, str]:
        """Return the lane (waiting line) of a job, made from the keys that the producer passes. See Placing.lane."""
        lane, full = super().lane(rank, values)
        given, units = key_texts(keys or {}), _units_in(keys or {})
        scopes = [self._given(*item) for item in given.items() if item[0] not in units]
        return lane_name(rank, [*scopes_of(lane), *scopes]), full

    def costs(
        self,
        lane: str,  # noqa: ARG002
        values: Mapping[str, Any],  # noqa: ARG002
        keys: Mapping[str, str] | None = None,
    ) -> str:
        """Return the costs of a job as text. The producer passes the costs in ``keys``, by unit. See Placing.costs."""
        units = _units_in(keys or {})
        costs = {unit: text for unit, text in (keys or {}).items() if unit in units}
        return costs_text({unit: given_cost(self.task, unit, costs[unit]) for unit in costs})

    def _given(self, family: str, value: str) -> str:
        scope = f"{family}={self._encoded(f'keys[{family!r}]', value)}"
        if family_of(family) in RESERVED or not is_scope(scope):
            raise InvalidOption.of("keys", {family: value}, "must be by family, the cap's name")
        return scope


def _units_in(keys: Mapping[str, str]) -> set[str]:
    """Return the units that the names in ``keys`` end with: the name ``send.tenant@60s:tokens`` has the unit
    ``tokens``."""
    return {unit for unit in map(unit_of, keys) if unit is not None}


def key_text(value: Any) -> str | None:
    """Convert a key's value to text. Numbers, dates and UUIDs are written as in JSON. None stays None.

    7 and "7" are the same key, since operators, and producers without the task's code, pass keys as text. In unique
    names, 7 and "7" differ, since a wrong match there would suppress a job. Raises TypeError for a list, a mapping or
    an object without a JSON form.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        plain = to_jsonable_python(value, bytes_mode="base64")
    except (PydanticSerializationError, ValueError):
        plain = [value]
    if isinstance(plain, dict | list):
        raise TypeError(
            f"a cap's key must be one value, not a {type(value).__name__}:"
            " use per= a function that returns text"
        )
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain)


def registered_placing(task: str, queue: str, policy: str) -> Placing:
    """Make a Placing from the policy (options and caps) that workers have registered for a task. A Placing chooses the
    lane (the waiting line) of each job. Raises QueueDamaged if the policy is invalid."""
    try:
        return Placing(
            task,
            queue,
            read_policy(policy),
            naming=read_naming(policy),
            options=read_options(policy),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise QueueDamaged(
            queue=queue, why=f"the policy of task {task} cannot be read ({error!r})"
        ) from None


def key_texts(keys: Mapping[str, str]) -> Mapping[str, str]:
    """Return ``keys`` unchanged. Raises InvalidOption unless it is a mapping of texts to texts."""
    given: object = keys
    if not isinstance(given, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in given.items()
    ):
        raise InvalidOption.of("keys", keys, "must be a mapping of family to text")
    return keys


class PolicyCache:
    """A cache of the Placings of tasks whose code this process lacks. A Placing chooses the lane of each job, and is
    made from a policy that was read from Redis. An entry is valid for CACHED_S seconds.

    The number of entries is bounded. Threads may share the cache.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], tuple[float, Placing]] = {}

    def get(self, queue: str, task: str) -> Placing | None:
        """Return the cached Placing of a task, the object that chooses the lanes of jobs. Return None if none was
        stored in the last CACHED_S seconds."""
        until, placing = self._found.get((queue, task), (0.0, None))
        return placing if self._clock() < until else None

    def put(self, placing: Placing) -> Placing:
        """Store a task's Placing, the object that chooses the lanes of jobs, in the cache, and return it."""
        if len(self._found) >= CACHED_MAX:
            self._found.clear()
        self._found[placing.queue, placing.task] = (self._clock() + CACHED_S, placing)
        return placing


def full_rules(rules: Iterable[tuple[str, str | int]]) -> str:
    """Convert a job's rules for full scopes to the text that enqueue.lua reads.

    A scope is a group of jobs that a cap counts. A rule is a pair: ("discard" or "reject", "SCOPE" or "SCOPE|CAP") says
    what happens if the scope is full, where CAP is the cap that the code declares. ("most", N) says that at most N jobs
    may wait in the job's lane.
    """
    return " ".join(f"{what}|{value}" for what, value in rules)
