"""The plain reads of a client: queues, jobs and scopes. They change no queue and call no script.

Reads with several round trips use :mod:`rq_core.protocol.reads.steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from rq_core import errors
from rq_core.model.job import error_of, spec_of
from rq_core.model.keys import check_name, is_name, queues_key
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import is_cluster
from rq_core.model.limits.limit import CapEntry
from rq_core.model.limits.scopes import QUEUE
from rq_core.model.settings import SETTINGS
from rq_core.model.state_line import JobState, line_of_job, read_state_line
from rq_core.model.table.machine import State
from rq_core.protocol.engine.acl_roles import is_denial, lacking_words
from rq_core.protocol.engine.plan import Lost, Plan, Unsent, pairs_of
from rq_core.protocol.engine.queue_check import check_layout, epoch_of
from rq_core.protocol.reads.box_reads import BoxReads
from rq_core.protocol.reads.job_reads import JobReads
from rq_core.protocol.reads.overview import (
    QUEUES_MAX,
    counts_of,
    overview_of,
    sizes,
)
from rq_core.protocol.reads.queue_load import Overview, QueueOverview
from rq_core.protocol.reads.scope_reads import ScopeReads
from rq_core.protocol.reads.shown_reads import ShownReads
from rq_core.protocol.reads.steps import time_ms
from rq_core.protocol.reads.whole_queue import WholeReads


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """The numbers of a queue's jobs by state, and the queue's main settings."""

    queue: str
    ready: dict[str, int]
    """Number of ready jobs without scopes, by priority. Cancelled jobs are counted until a claim removes their
    entries."""
    scheduled: int
    running: int
    dead: int
    paused: bool
    audit: bool
    backlog: int
    """Number of events that the mirror has not yet copied into SQL."""
    epoch: int
    waiting: int = 0
    """Number of ready jobs with scopes, whether their scopes have room or not."""
    open_lanes: int = 0
    """Number of lanes from which jobs can be claimed. A lane has the waiting jobs of one priority and the same
    scopes."""
    cap: int | None = None
    """Maximum number of jobs of the queue that may run at once; None: any number."""
    parked: int = 0
    settings: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueList:
    """The list of queues, sorted. Invalid entries are in ``strays``."""

    queues: list[str]
    strays: list[str]
    """Entries that are not valid names of queues."""

    @classmethod
    def of(cls, names: Iterable[str]) -> QueueList:
        """Return the list of queues, sorted, from the entries ``names`` of the key. Invalid names become ``strays``."""
        found = sorted(names)
        return cls([n for n in found if is_name(n)], [n for n in found if not is_name(n)])

    @property
    def complaint(self) -> str:
        """A message about invalid entries, without a full stop at its end. It is empty if all entries are valid."""
        if not self.strays:
            return ""
        shown = ", ".join(ascii(name[:STRAY_MAX]) for name in self.strays[:STRAYS_SHOWN])
        more = ", …" if len(self.strays) > STRAYS_SHOWN else ""
        many = counted(len(self.strays), "entry", "entries")
        return (
            f"the list of queues has {many} that can name no queue: {shown}{more};"
            " `rq-core doctor --repair` removes them"
        )


STRAYS_SHOWN: Final = 3
STRAY_MAX: Final = 50
"""Maximum number of characters that a message shows of an invalid entry in the list of queues."""


class Reads(JobReads, ScopeReads, WholeReads, BoxReads, ShownReads):
    """All reads of a client. Two further calls add a queue to the list of queues, and remove invalid entries from
    it."""

    # The list of queues.

    def queues(self) -> Plan[list[str]]:
        """Return the names of all queues that have this client's key prefix, sorted."""
        return (yield from self.listed()).queues

    def listed(self) -> Plan[QueueList]:
        """Return the list of queues. It may have invalid entries, because every user that may create a queue may add
        entries."""
        (names,) = yield from self._delivery.ask([["SMEMBERS", self._list]])
        return QueueList.of(names)

    def readable(self, queues: Sequence[str]) -> Plan[list[str]]:
        """Return those of ``queues`` that the Redis user may read. Raises ServerUnsuitable if the user may read no
        queue.
        """
        replies = yield from self._delivery.asking.ask_each(
            [["HGET", self._keys(queue)("meta"), "epoch"] for queue in queues]
        )
        denied = [isinstance(r, Exception) and is_denial(str(r)) for r in replies]
        return [queue for queue, no in zip(queues, denied, strict=True) if not no]

    def other_layouts(self, queues: Sequence[str]) -> Plan[dict[str, errors.LayoutMismatch]]:
        """Return an error for each queue whose keys this version of rq-core cannot read. Queues that the Redis user may
        not read are left out.
        """
        asked = [["HGET", self._keys(queue)("meta"), "layout"] for queue in queues]
        replies = (yield from self._delivery.asking.ask_each(asked)) if asked else []
        found = {}
        for queue, layout in zip(queues, replies, strict=True):
            try:
                check_layout(queue, {"layout": layout} if isinstance(layout, str) else {})
            except errors.LayoutMismatch as error:
                found[queue] = error
        return found

    def enlist(self, queue: str) -> Plan[None]:
        """Add a queue to the list of queues."""
        yield from self._delivery.ask([["SADD", self._list, queue]])

    def strike(self, strays: Sequence[str]) -> Plan[None]:
        """Remove invalid entries from the list of queues."""
        if strays:
            yield from self._delivery.ask([["SREM", self._list, *strays]])

    @property
    def _list(self) -> str:
        return queues_key(self._delivery.prefix)

    # The facts of a queue.

    def is_there(self, queue: str) -> Plan[bool]:
        """Return whether a queue exists. This call does not create the queue."""
        asked = [["HGET", self._keys(queue)("meta"), "epoch"]]
        (epoch,) = yield from self._delivery.ask(asked, queue)
        return epoch is not None

    def stamp(self, queue: str) -> Plan[str | None]:
        """Return the text by which an audit database recognizes a queue; an empty text if the queue has none. Returns
        None if the queue does not exist.
        """
        epoch, stamp = yield from self._facts(queue, "epoch", "stamp")
        return None if epoch is None and stamp is None else stamp or ""

    def attached(self, queue: str) -> Plan[tuple[str | None, str | None, str | None]]:
        """Return three values about a queue's audit log; None for a value that was never set.

        The values are: ``on`` or ``off``; the id of the audit database; the last entry up to which the outbox was
        trimmed.
        """
        audit, audit_id, trimmed = yield from self._facts(queue, "audit", "audit_id", "trimmed")
        return audit, audit_id, trimmed

    def now_ms(self, queue: str) -> Plan[int]:
        """Return the time of the server that has the queue (Unix ms)."""
        # Sent with a command that has the queue's key: in a cluster the clock of its shard counts.
        asked = [["TIME"], ["HGET", self._keys(queue)("meta"), "epoch"]]
        now, _ = yield from self._delivery.ask(asked, queue)
        return time_ms(now)

    def _facts(self, queue: str, *names: str) -> Plan[list[str | None]]:
        (facts,) = yield from self._delivery.ask(
            [["HMGET", self._keys(queue)("meta"), *names]], queue
        )
        return list(facts)

    # The numbers of queues.

    def counts(self, queue: str) -> Plan[QueueCounts]:
        """Return the numbers of a queue's jobs. Raises QueueDamaged if a field of ``meta`` that must be a number is not
        a number."""
        keys = self._keys(queue)
        asked = [*sizes(keys), ["HGET", keys("caps"), QUEUE]]
        *replies, cap = yield from self._delivery.ask(asked, queue)
        facts = pairs_of(replies[-1])

        def number(name: str) -> int:
            default = SETTINGS[name].default if name in SETTINGS else 0
            value = facts.get(name, default)
            try:
                return epoch_of(queue, value) if name == "epoch" else int(value)
            except ValueError:
                raise errors.QueueDamaged(
                    queue=queue,
                    why=f"field {name} of its key meta must be a number, not {value!r}",
                ) from None

        found = counts_of(replies, facts, number)
        return QueueCounts(queue, **found, cap=CapEntry.parse(cap).limit.most if cap else None)

    def overview(self) -> Plan[Overview]:
        """Return the numbers of all queues of the prefix. A queue that cannot be read is named in the answer, and the
        other queues are read.

        Raises ServerUnavailable or ServerUnsuitable if nothing can be read.
        """
        asking = self._delivery.asking
        read = ["SMEMBERS", self._list]
        names, info = yield from asking.ask_each([read, ["INFO", "memory"]])
        if isinstance(names, (Unsent, Lost)):
            raise errors.ServerUnavailable(url=asking.url, why=str(names)) from names
        if isinstance(names, Exception):
            raise asking.unsuitable(names, read) from names
        listed = QueueList.of(names)
        first = listed.queues[:QUEUES_MAX]
        queues, unreadable = yield from self.looks(first)
        denied = [name for name, why in unreadable.items() if is_denial(why)]
        if denied and not queues:
            why = lacking_words((), unreadable[denied[0]])
            raise errors.ServerUnsuitable(url=asking.url, why=why)
        # A user of one queue should not read each time that it may not read the others' queues.
        unreadable = {name: why for name, why in unreadable.items() if name not in denied}
        left_out = len(listed.queues) - len(first)
        used, most = (None, None) if is_cluster(asking.url) else _memory(info)
        return Overview(
            tuple(queues), unreadable, left_out, used, most, listed.complaint, tuple(denied)
        )

    def looks(self, queues: Sequence[str]) -> Plan[tuple[list[QueueOverview], dict[str, str]]]:
        """Read the numbers of these queues, in three round trips. Returns the numbers of the readable queues, and, by
        queue, the reason why a queue could not be read.
        """
        return self.side_by_side({queue: overview_of(self._keys(queue)) for queue in queues})

    # One job.

    def job(self, job_id: str, queues: Sequence[str] | None = None) -> Plan[JobState | None]:
        """Return a job's state. The first of ``queues`` that has the job is read (default: all queues of the prefix).
        Returns None if no queue has the job."""
        check_name("job", job_id)
        if queues is None:
            queues = yield from self.queues()
        keys = [self._keys(queue)(key) for queue in queues for key in ("state", "jobs")]
        asked = [["HGET", key, job_id] for key in keys]
        replies = (yield from self._delivery.ask(asked)) if asked else []
        for queue, line, value in zip(queues, replies[::2], replies[1::2], strict=True):
            stands = line_of_job(line, value)
            if stands is not None:
                spec = None if value is None else spec_of(value)
                found = read_state_line(queue, job_id, stands, spec)
                died = found.state is State.DEAD and value is not None
                return replace(found, error=error_of(value)) if died else found
        return None


def _memory(info: Any) -> tuple[int | None, int | None]:
    """Return the used and the allowed bytes of memory, as the answer to INFO shows them; None for a missing number."""
    if isinstance(info, Exception):
        return None, None
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    used, most = facts.get("used_memory"), facts.get("maxmemory")
    return (int(used) if used else None), (int(most) if most else None)
