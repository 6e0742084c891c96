"""Examining a queue and mending what was found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.doctor import indexes, lanes, log
from rq_core.doctor.finding import Finding, Kind, Record
from rq_core.doctor.view import View

CHUNK: Final = 500
"""Records in one repair call."""
PASSES: Final = 3
"""How often a queue that goes on working is mended before giving up."""
LAST: Final = ("blocked", "lane")
"""Kinds of records that come after all others: a lane's place is found from the jobs that wait in it."""
LOOKS: Final = 3
LOOK_PAUSE_S: Final = 0.1
"""Seconds between two looks at what may be true for a moment only."""


def examine(snapshot: Mapping[str, Any]) -> list[Finding]:
    """Say what in a snapshot (see Operations.snapshot) does not agree."""
    view = View(snapshot)
    of_log = list(log.findings(view))
    # What follows from a state line that is missing is mended with it.
    restored = {f.job_id for f in of_log if f.record is not None and f.record.line}
    of_indexes = [*indexes.findings(view), *lanes.findings(view)]
    return [*(f for f in of_indexes if f.job_id not in restored), *of_log]


def diagnose(
    client: Client, queue: str, *, sleep: Callable[[float], None] = time.sleep
) -> list[Finding]:
    """Look at a queue. Changes nothing. Raises QueueDamaged if a key has the wrong type.

    A worker that has just taken the token and has not claimed yet makes it look as if nobody
    would wake; so that is looked at again.
    """
    found = examine(client.run(client.calls.reads.snapshot(queue)))
    for _ in range(LOOKS - 1):
        if {f.kind for f in found} != {Kind.NO_WAKE}:
            break
        sleep(LOOK_PAUSE_S)
        found = examine(client.run(client.calls.reads.snapshot(queue)))
    return found


def repair(client: Client, queue: str, findings: Iterable[Finding], *, by: str) -> list[Finding]:
    """Mend what was found and look again. Returns what is left; mending twice does no harm.

    ``by`` stands in the log. Raises what Client.run raises.
    """
    found = list(findings)
    for _ in range(PASSES):
        mendable = [f for f in found if f.mendable]
        if not mendable:
            break
        _mend(client, queue, mendable, by)
        found = diagnose(client, queue)
    return found


def _mend(client: Client, queue: str, findings: list[Finding], by: str) -> None:
    # Begins a new epoch if `meta` or the outbox is gone.
    client.run(client.calls.delivery.handshake(queue))
    records = _records(findings)
    values = {f.kind: f.value for f in findings if f.value is not None}
    for start in range(0, max(len(records), 1), CHUNK):
        plan = client.calls.audit.repair(
            queue,
            records[start : start + CHUNK],
            by=by,
            sequence_min=values.get(Kind.SEQUENCE, 0),
            tombstones=values.get(Kind.TOMBSTONES, -1),
        )
        client.run(plan)


def _records(findings: Iterable[Finding]) -> list[Record]:
    """Return one record for each thing to mend, in the order in which they are to be mended."""
    records: dict[tuple[str, str], Record] = {}
    for finding in findings:
        if finding.record is not None:
            key = finding.record[:2]
            known = records.get(key)
            records[key] = finding.record if known is None else known.joined(finding.record)
    return sorted(records.values(), key=lambda record: record.kind in LAST)
