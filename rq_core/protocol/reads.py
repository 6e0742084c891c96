"""Plain reads: how a queue stands. They change nothing and need no script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rq_core import errors
from rq_core.model.job import error_of, spec_of
from rq_core.model.keys import KEYS, check_name, is_name, queue_keys, queues_key
from rq_core.model.limits import CapEntry
from rq_core.model.machine import PRIORITIES, State
from rq_core.model.outcome import EXPIRED
from rq_core.model.remembered import Result, read_result
from rq_core.model.scopes import QUEUE
from rq_core.model.settings import SETTINGS
from rq_core.model.state_line import JobState, line_of_job, read_state_line, read_state_lines
from rq_core.protocol.delivery import Delivery
from rq_core.protocol.denial import is_denial
from rq_core.protocol.lines import PAGE, read_errors
from rq_core.protocol.one_step import in_one_step
from rq_core.protocol.plan import Plan, pairs_of, says_full
from rq_core.protocol.usable import epoch_of


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many jobs a queue has, by where they stand, and its main facts."""

    queue: str
    ready: dict[str, int]
    """By priority, those without scopes. Includes the entries of cancelled jobs until claim passes over them."""
    scheduled: int
    running: int
    dead: int
    paused: bool
    audit: bool
    backlog: int
    """Events that wait to be mirrored."""
    epoch: int
    waiting: int = 0
    """Ready jobs with scopes, whether their scopes have room or not."""
    open_lanes: int = 0
    """Lanes of such jobs that may be served."""
    cap: int | None = None
    """How many of its jobs may run at once; None: any number."""
    settings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Listed:
    """What the list of queues has, sorted."""

    queues: list[str]
    strays: list[str]
    """Entries that can name no queue."""

    @classmethod
    def of(cls, names: Iterable[str]) -> Listed:
        """Sort what Redis has given."""
        found = sorted(names)
        return cls([n for n in found if is_name(n)], [n for n in found if not is_name(n)])

    @property
    def complaint(self) -> str:
        """What is to be said of the strays, without a full stop; empty if there are none."""
        if not self.strays:
            return ""
        shown = ", ".join(ascii(name[:STRAY_MAX]) for name in self.strays[:STRAYS_SHOWN])
        more = ", …" if len(self.strays) > STRAYS_SHOWN else ""
        many = f"{len(self.strays):,} {'entry' if len(self.strays) == 1 else 'entries'}"
        return (
            f"the list of queues has {many} that can name no queue: {shown}{more};"
            " `rq-core doctor --repair` removes them"
        )


STRAYS_SHOWN: Final = 3
STRAY_MAX: Final = 50
"""Characters of each that are shown."""


class Reads:
    """The reads of a client."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def queues(self) -> Plan[list[str]]:
        """The queues of this prefix, by name."""
        return (yield from self.listed()).queues

    def listed(self) -> Plan[Listed]:
        """What the list of queues has: all that may make a queue may add to it, by hand, too."""
        (names,) = yield from self._delivery.ask([["SMEMBERS", queues_key(self._delivery.prefix)]])
        return Listed.of(names)

    def readable(self, queues: Sequence[str]) -> Plan[list[str]]:
        """Those of some queues that the user may read. Raises ServerUnsuitable if there is none."""
        keys = [queue_keys(queue, self._delivery.prefix)("meta") for queue in queues]
        replies = yield from self._delivery.asking.ask_each(
            [["HGET", key, "epoch"] for key in keys]
        )
        denied = [isinstance(r, Exception) and is_denial(str(r)) for r in replies]
        return [queue for queue, no in zip(queues, denied, strict=True) if not no]

    def is_there(self, queue: str) -> Plan[bool]:
        """Whether a queue has been made. To look does not make it."""
        meta = queue_keys(queue, self._delivery.prefix)("meta")
        (epoch,) = yield from self._delivery.ask([["HGET", meta, "epoch"]], queue)
        return epoch is not None

    def stamp(self, queue: str) -> Plan[str | None]:
        """The mark by which an audit database knows a queue; empty if it has none, None if there is no queue."""
        meta = queue_keys(queue, self._delivery.prefix)("meta")
        ((epoch, stamp),) = yield from self._delivery.ask(
            [["HMGET", meta, "epoch", "stamp"]], queue
        )
        return None if epoch is None and stamp is None else stamp or ""

    def attached(self, queue: str) -> Plan[tuple[str | None, str | None, str | None]]:
        """Whether a queue's log is on, the id of its audit database, and up to which entry that has it; None: never."""
        meta = queue_keys(queue, self._delivery.prefix)("meta")
        (facts,) = yield from self._delivery.ask(
            [["HMGET", meta, "audit", "audit_id", "trimmed"]], queue
        )
        audit, audit_id, trimmed = facts
        return audit, audit_id, trimmed

    def enlist(self, queue: str) -> Plan[None]:
        """Put a queue on the list of queues."""
        yield from self._delivery.ask([["SADD", queues_key(self._delivery.prefix), queue]])

    def strike(self, strays: Sequence[str]) -> Plan[None]:
        """Take entries off the list of queues that can name no queue."""
        if strays:
            listed = queues_key(self._delivery.prefix)
            yield from self._delivery.ask([["SREM", listed, *strays]])

    def counts(self, queue: str) -> Plan[QueueCounts]:
        """How many jobs a queue has. Raises QueueDamaged if its epoch is no number."""
        keys = queue_keys(queue, self._delivery.prefix)
        ready = [["LLEN", keys(f"ready:{n}")] for n in range(len(PRIORITIES))]
        sets = ("scheduled", "leases", "dead", "waiting", "open")
        rest = [["ZCARD", keys(name)] for name in sets]
        facts_of = [
            ["HLEN", keys("jobs")],
            ["HGET", keys("caps"), QUEUE],
            ["HGETALL", keys("meta")],
        ]
        *numbers, alive, cap, meta = yield from self._delivery.ask(
            [*ready, *rest, *facts_of], queue
        )
        facts = pairs_of(meta)
        # `scheduled` also has what resumes by itself, so the jobs there are those that are nowhere else.
        tombstones = _number(queue, facts, "tombstones")
        elsewhere = sum(numbers[: len(ready)]) - tombstones + sum(numbers[-4:-1])
        scheduled = max(0, min(numbers[-5], alive - elsewhere))
        return QueueCounts(
            queue=queue,
            ready=dict(zip((str(p) for p in PRIORITIES), numbers, strict=False)),
            scheduled=scheduled,
            running=numbers[-4],
            dead=numbers[-3],
            waiting=numbers[-2],
            open_lanes=numbers[-1],
            cap=CapEntry.parse(cap).limit.most if cap else None,
            paused=facts.get("paused") == "1",
            audit=facts.get("audit") == "on",
            backlog=_number(queue, facts, "backlog_jobs"),
            epoch=epoch_of(queue, facts.get("epoch", 0)),
            settings={name: _number(queue, facts, name, s.default) for name, s in SETTINGS.items()},
        )

    def job(self, job_id: str, queues: Sequence[str] | None = None) -> Plan[JobState | None]:
        """Where a job stands, in the first of ``queues`` (all of the prefix if None) that has it; None if none does."""
        check_name("job", job_id)
        if queues is None:
            queues = yield from self.queues()
        commands = []
        for queue in queues:
            keys = queue_keys(queue, self._delivery.prefix)
            commands += [["HGET", keys("state"), job_id], ["HGET", keys("jobs"), job_id]]
        replies = (yield from self._delivery.ask(commands)) if commands else []
        for at, queue in enumerate(queues):
            line, value = replies[2 * at : 2 * at + 2]
            stands = line_of_job(line, value)
            if stands is not None:
                spec = None if value is None else spec_of(value)
                found = read_state_line(queue, job_id, stands, spec)
                died = found.state is State.DEAD and value is not None
                return replace(found, error=error_of(value)) if died else found
        return None

    def dead(self, queue: str, limit: int = 100) -> Plan[tuple[list[JobState], list[str]]]:
        """The jobs that died last, newest first, page by page; and why others cannot be read."""
        keys = queue_keys(queue, self._delivery.prefix)
        found: dict[str, JobState] = {}
        damaged: dict[str, None] = {}
        at, more = 0, True
        while more and len(found) < limit:
            count = min(PAGE, limit - len(found))
            (ids,) = yield from self._delivery.ask(
                [["ZRANGE", keys("dead"), at, at + count - 1, "REV"]], queue
            )
            at, more = at + len(ids), len(ids) == count
            if not ids:
                break
            (lines,) = yield from self._delivery.ask([["HMGET", keys("state"), *ids]], queue)
            said = yield from read_errors(self._delivery, keys, ids)
            jobs, unread = read_state_lines(queue, zip(ids, lines, strict=True))
            damaged |= dict.fromkeys(unread)
            died = dict(zip(ids, said, strict=True))
            found |= {job.id: replace(job, error=died[job.id]) for job in jobs}
        return [*found.values()], [*damaged]

    def ended(
        self, job_id: str, queues: Sequence[str]
    ) -> Plan[tuple[str, Result, str | None] | None]:
        """The first of these queues that remembers the id of a job which has ended, or keeps its result; what it says
        of it, and the value if it is there. None if there is no such queue. What is past its moment is forgotten."""
        check_name("job", job_id)
        for queue in queues:
            keys = queue_keys(queue, self._delivery.prefix)
            asked: list[list[Any]] = [
                ["HGET", keys(key), job_id] for key in ("results", "returned")
            ]
            line, value, (seconds, micros) = yield from self._delivery.ask(
                [*asked, ["TIME"]], queue
            )
            now_ms = int(seconds) * 1000 + int(micros) // 1000
            result = None if line is None else read_result(job_id, line)
            if result is None or (result.forgotten_ms or 0) <= now_ms:
                continue
            if value is not None and (result.until_ms or 0) <= now_ms:
                result, value = result._replace(missing=EXPIRED), None
            return queue, result, value
        return None

    def now_ms(self, queue: str) -> Plan[int]:
        """The time of the server that has the queue (Unix ms)."""
        # Asked beside something of the queue: in a cluster it is its shard's clock that counts.
        meta = queue_keys(queue, self._delivery.prefix)("meta")
        time, _ = yield from self._delivery.ask([["TIME"], ["HGET", meta, "epoch"]], queue)
        return int(time[0]) * 1000 + int(time[1]) // 1000

    def snapshot(self, queue: str) -> Plan[dict[str, Any]]:
        """Everything a queue has in Redis, read in one transaction: key name → value in Python's types.

        For the doctor and for tests. It is as large as the queue. Raises QueueDamaged if a key has the wrong type.
        """
        keys = queue_keys(queue, self._delivery.prefix)
        read = {
            "hash": lambda key: ["HGETALL", key],
            "list": lambda key: ["LRANGE", key, 0, -1],
            "zset": lambda key: ["ZRANGE", key, 0, -1, "WITHSCORES"],
            "stream": lambda key: ["XRANGE", key, "-", "+"],
        }
        commands = [read[key.type](keys(key.name)) for key in KEYS]
        try:
            *_, values = yield from self._delivery.ask([["MULTI"], *commands, ["EXEC"]])
        except errors.ServerUnsuitable as error:
            if not says_full(error):
                raise
            # A full Redis 7.0 queues no command.
            (values,) = yield from self._delivery.ask([in_one_step(commands)])
        shaped: dict[str, Any] = {}
        for key, value in zip(KEYS, values, strict=True):
            if isinstance(value, Exception):
                raise errors.QueueDamaged(
                    f"queue {queue!r} is damaged: key {keys(key.name)} is not a {key.type}. Move it away with RENAME,"
                    f" then run `rq-core doctor {queue} --repair`",
                    queue=queue,
                    why=str(value),
                )
            if key.type == "hash":
                shaped[key.name] = pairs_of(value)
            elif key.type == "zset":
                shaped[key.name] = {m: float(s) for m, s in pairs_of(value).items()}
            elif key.type == "stream":
                shaped[key.name] = [(i, pairs_of(flat)) for i, flat in value]
            else:
                shaped[key.name] = list(value)
        return shaped


def _number(queue: str, facts: Mapping[str, str], name: str, default: int = 0) -> int:
    """A number of ``meta``. Raises QueueDamaged if the field has anything else."""
    value = facts.get(name, default)
    try:
        return int(value)
    except ValueError:
        raise errors.QueueDamaged(
            queue=queue, why=f"field {name} of its key meta reads {value!r}, and is to be a number"
        ) from None
