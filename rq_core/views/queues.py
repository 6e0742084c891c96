"""Views of queues and their workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from rq_core.model.lib.text import counted
from rq_core.model.table.machine import DEFAULT_PRIORITY
from rq_core.protocol.reads.worker_registry import TELL_EVERY_S
from rq_core.views.table import Found
from rq_core.views.text import one_line

if TYPE_CHECKING:
    from rq_core.protocol.engine.plan import Plan
    from rq_core.protocol.operations import Operations
    from rq_core.protocol.reads.queue_load import QueueOverview
    from rq_core.protocol.reads.worker_registry import PresentWorker


_MISSED_MS: Final = int(1_500 * TELL_EVERY_S)
"""Milliseconds without a report after which a worker counts as having missed a report."""


def all_queues(calls: Operations) -> Plan[Found[QueueOverview]]:
    """Return a row for each queue, with the numbers of its jobs and its problems."""
    found = yield from calls.reads.overview()
    return Found(
        found.queues,
        empty="" if found.unreadable else "no queues yet: the first job of a queue makes it",
        unread=[*_unreadable(found.unreadable), *filter(None, [found.strays])],
        denied=found.denied,
    )


def workers_of(calls: Operations, queues: Sequence[str]) -> Plan[Found[PresentWorker]]:
    """Return the workers of these queues, each once. The worker that started last comes first, but workers that have
    missed reports come after all others."""
    found, unreadable = yield from calls.reads.looks(queues)
    rows = {each.worker: each for queue in found for each in queue.workers}
    notes = [_skew([each for each in rows.values() if not each.gone])]
    if not all(each.workers_exact for each in found):
        notes.append("the queue has more workers than are read at once: not all are listed")
    empty = "no worker runs in the other queues" if unreadable else "no worker runs"
    return Found(
        # A killed worker counts as live for a while: it comes behind the one that its supervisor started in its place.
        sorted(
            rows.values(),
            key=lambda w: (w.silent_ms // _MISSED_MS, -w.says.since_ms, w.says.host, w.worker),
        ),
        empty=empty if found or not unreadable else "",
        notes=[*filter(None, notes)],
        unread=_unreadable(unreadable),
    )


def _unreadable(queues: dict[str, str]) -> list[str]:
    return [f"queue {queue} cannot be read: {one_line(why)}" for queue, why in queues.items()]


def _skew(present: Iterable[PresentWorker]) -> str:
    """Return a sentence if workers of one queue have different code or versions; empty if not."""
    codes: dict[str, set[tuple[str, str]]] = {}
    for each in present:
        for queue in each.says.queues:
            codes.setdefault(queue, set()).add((each.says.version, each.says.code))
    mixed = ", ".join(sorted(queue for queue, found in codes.items() if len(found) > 1))
    return f"workers run different code or versions of rq-core in {mixed}" if mixed else ""


def queue_notes(found: QueueOverview, _now_ms: float) -> str:
    """Return notes about a queue as one text, such as that it is paused, or which caps are full."""
    from rq_core.metrics.causes import mirror_behind

    paused = ["paused"] if found.paused else []
    lanes = [f"{counted(found.waiting, 'job')} in lanes"] if found.waiting else []
    ready = [f"{n:,} {p}" for p, n in found.ready.items() if n and p != DEFAULT_PRIORITY]
    full = [f"full: {each.scope}" for each in found.full_scopes]
    known = [f"{counted(found.remembered, 'id')} remembered"] if found.remembered else []
    if found.kept_bytes and known:
        known = [f"{known[0]} or with a result ({found.kept_bytes:,} bytes of results)"]
    if found.remembered_ratio >= 1:
        known = [f"{known[0]}: no more fit, and new jobs of that kind are refused"]
    evicted = [f"{counted(found.evicted, 'result')} evicted"] if found.evicted else []
    behind = [says] if (says := mirror_behind(found)) else []
    return "; ".join([*paused, *lanes, *ready, *full, *known, *evicted, *behind])


def queue_document(found: QueueOverview) -> dict[str, Any]:
    """Return a queue as a JSON document. Its durations are in ms."""
    scopes = [{**dataclasses.asdict(each), "limit": str(each.limit)} for each in found.scopes]
    return {**dataclasses.asdict(found), "scopes": scopes}


def worker_document(found: PresentWorker) -> dict[str, Any]:
    """Return a worker as a JSON document."""
    says = dataclasses.asdict(found.says)
    return {"worker": found.worker, **says, "silent_ms": found.silent_ms, "gone": found.gone}
