"""The calls of the mirror, of a restore after a loss, and of the doctor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rq_core.model.events import OutboxId
from rq_core.model.keys import check_name, queue_keys
from rq_core.protocol.answers import Restoration, Restored, parse_nothing, parse_restored
from rq_core.protocol.delivery import Carrier
from rq_core.protocol.plan import Call, Plan, pairs_of

BASELINE_CHUNK: Final = 1_000
"""Most jobs whose baseline is written in one call."""


class Mirroring(Carrier):
    """What keeps the audit trail and mends a queue."""

    def attach(self, queue: str, audit_id: str, known: int = 0) -> Plan[None]:
        """Switch the audit trail on, for this audit database. Writes a baseline of the jobs that are alive, unless
        the outbox still has the whole history. Raises AuditElsewhere if another database has the queue.

        ``known`` is an epoch that the database has: a queue in an earlier one starts another beyond it, with a
        baseline, and so does every handshake of this client that starts one."""
        self.set_floor(queue, known)
        answer = yield from self._attach(queue, audit_id, "on", known)
        if answer != "baseline":
            return
        keys = queue_keys(queue, self.prefix)
        cursor = "0"
        while True:
            (reply,) = yield from self.ask([["HSCAN", keys("state"), cursor, "COUNT", 1000]], queue)
            cursor, flat = reply
            ids = list(pairs_of(flat))
            chunks = [ids[at : at + BASELINE_CHUNK] for at in range(0, len(ids), BASELINE_CHUNK)]
            for chunk in chunks:
                yield from self._baseline(queue, chunk, last=0)
            if str(cursor) == "0":
                yield from self._baseline(queue, [], last=1)
                return

    def detach(self, queue: str, audit_id: str) -> Plan[None]:
        """Switch the audit trail off: the outbox becomes a ring of recent events."""
        yield from self._attach(queue, audit_id, "off")

    def _attach(self, queue: str, audit_id: str, mode: str, known: int = 0) -> Plan[str]:
        args = {
            "by": self.name,
            "audit_id": check_name("audit", audit_id),
            "mode": mode,
            "known": known,
        }
        return (yield from self.one(Call("attach", queue, args, lambda reply: str(reply[0]))))

    def _baseline(self, queue: str, ids: Sequence[str], *, last: int) -> Plan[None]:
        args = {"by": self.name, "last": last}
        yield from self.one(Call("baseline", queue, args, parse_nothing, [(i,) for i in ids]))

    def read_outbox(
        self, queue: str, start: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Entries from ``start`` on (inclusive; "-" for the first), raw."""
        keys = queue_keys(queue, self.prefix)
        (entries,) = yield from self.ask(
            [["XRANGE", keys("outbox"), start, "+", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def read_outbox_back(
        self, queue: str, before: str, count: int
    ) -> Plan[list[tuple[str, dict[str, str]]]]:
        """Entries before ``before`` (exclusive), raw, the newest first."""
        keys = queue_keys(queue, self.prefix)
        (entries,) = yield from self.ask(
            [["XREVRANGE", keys("outbox"), f"({before}", "-", "COUNT", count]], queue
        )
        return [(entry_id, pairs_of(flat)) for entry_id, flat in entries]

    def trim(self, queue: str, audit_id: str, upto: str, jobs: int, size: int) -> Plan[None]:
        """Forget the outbox below ``upto``, which is committed in SQL and stays as an anchor. If Redis has forgotten
        ``upto`` itself, nothing is trimmed.

        ``jobs`` and ``size`` are what was mirrored since the last trim: job events (one for an event about the queue),
        and the bytes of their type, jobs or data, and why fields.
        """
        OutboxId.parse(upto)
        args = {"audit_id": audit_id, "upto": upto, "jobs": jobs, "size": size}
        yield from self.one(Call("trim", queue, args, parse_nothing))

    def restore(
        self,
        queue: str,
        records: Sequence[Restoration],
        *,
        after: str,
        by: str | None = None,
        why: str = "",
    ) -> Plan[Restored]:
        """Put lost jobs back and take revived ones out, as SQL knows them: see restore.lua. At most BATCH_MAX records.

        ``after`` is the last restore that was known when SQL was read: ``restored`` of the queue's meta, or of this
        call's last answer. Raises RestoredMeanwhile if there was another, AuditBacklogFull, QueueFull."""
        args = {"by": check_name("actor", by or self.name), "why": why, "after": after}
        ids = tuple(check_name("job", record.id) for record in records)
        return (yield from self.one(Call("restore", queue, args, parse_restored, records, ids)))

    def repair(
        self,
        queue: str,
        records: Sequence[tuple[str, str, int, int, str, str]],
        *,
        by: str,
        sequence_min: int,
        tombstones: int,
    ) -> Plan[int]:
        """Mend (kind, name, relog, relist, was, line) records; see repair.lua. Returns how many."""
        args = {"by": by, "sequence_min": sequence_min, "tombstones_now": tombstones}
        return (yield from self.one(Call("repair", queue, args, lambda r: int(r[0]), records)))
