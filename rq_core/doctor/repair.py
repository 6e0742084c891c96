"""Examines a queue, and repairs the differences that are found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.connections.client import Client
from rq_core.doctor import comparison, log_check
from rq_core.doctor.comparison import is_kept
from rq_core.doctor.finding import Finding, Kind
from rq_core.doctor.image import LISTS, Image
from rq_core.doctor.log import FoldedLog, read_log
from rq_core.doctor.snapshot import UNNAMED, StateLines, View
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.protocol.engine.queue_check import check_layout

CHUNK: Final = 125
"""Approximate number of members that one call reads or edits. It is low, so that no call blocks the server for 10
ms."""
CHUNK_BYTES: Final = 2 * 1024 * 1024
"""Approximate number of bytes that one call reads or edits, counting the old and the new values."""
PARTS_MAX: Final = 200
"""Maximum number of rounds that repair a part of a box. One round cannot repair a large box: a box may have 10,000
saved steps."""
PASSES: Final = 3
"""Maximum number of other rounds of a repair. More than one is needed if workers change the queue meanwhile."""
WHY: Final = "doctor"
"""The reason that the log gives for jobs that a repair has woken."""
LOOKS: Final = 3
LOOK_PAUSE_S: Final = 0.1
"""Seconds before a difference is checked again, because it may exist only for a moment."""


class Evidence(NamedTuple):
    """The data that the doctor examines: a snapshot of a queue, the queue's log, and findings from the audit
    database."""

    snapshot: Mapping[str, Any]
    """The contents of the queue's keys, as rq_core.protocol.reads.whole_queue.Snapshot describes them."""
    log: FoldedLog | None = None
    """The log from the outbox and the audit database; None: only the outbox in the snapshot is used."""
    findings: Sequence[Finding] = ()
    """Further findings, from the comparison with the audit database."""
    lines: StateLines | None = None
    """The state lines in the snapshot; None: they were not read yet."""


Audit = Callable[[], Evidence | None]
"""A function that reads a queue from Redis and from an audit database. It returns None if the database cannot be
read."""


def examine(
    snapshot: Mapping[str, Any],
    keys: QueueKeys = UNNAMED,
    log: FoldedLog | None = None,
    now_ms: int | None = None,
    lines: StateLines | None = None,
) -> list[Finding]:
    """Return the differences (findings) in a snapshot of a queue, without I/O.

    ``keys``: the key names for commands in the findings. ``log``: the queue's log; None: it is read from the outbox in
    the snapshot. ``now_ms``: Redis' time after the snapshot (Unix ms); without it, times too far in the future are not
    found. ``lines``: the state lines in the snapshot, if the caller has read them.
    """
    image = Image(View(snapshot, keys, log or read_log(snapshot), now_ms, lines))
    differing = comparison.edits_by_owner(image)
    of_facts = list(log_check.log_findings(image, differing))
    found = [*comparison.index_findings(image, differing), *of_facts]
    moving = image.view.log.moving
    return (
        [f for f in found if moving.isdisjoint((f.job_id, *(f.owner or ())[1:]))]
        if moving
        else found
    )


def diagnose(
    client: Client,
    queue: str,
    *,
    audit: Audit | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> list[Finding]:
    """Return the differences (findings) in a queue, without changing the queue. ``audit``: a function that also reads
    the audit database.

    If the only finding is a missing wake token, the queue is read again: perhaps a worker has taken the token and is
    about to claim. Raises QueueDamaged if a key has the wrong type, and LayoutMismatch if this release cannot read the
    queue.
    """
    found = _examined(client, queue, audit)
    for _ in range(LOOKS - 1):
        if {f.kind for f in found} != {Kind.NO_WAKE}:
            break
        sleep(LOOK_PAUSE_S)
        found = _examined(client, queue, audit)
    return found


def _examined(client: Client, queue: str, audit: Audit | None) -> list[Finding]:
    look = None if audit is None else audit()
    if look is None or look.log is None:
        alone = Evidence(client.run(client.calls.reads.whole(queue)))
        look = alone if look is None else alone._replace(findings=look.findings)
    check_layout(queue, look.snapshot["meta"])
    return examined(client, queue, look)


def examined(client: Client, queue: str, look: Evidence) -> list[Finding]:
    """Return the findings of a queue from data that the caller has read."""
    now_ms = client.run(client.calls.reads.now_ms(queue))
    keys = queue_keys(queue, client.calls.delivery.prefix)
    found = examine(look.snapshot, keys, look.log, now_ms, look.lines)
    if getattr(look.snapshot, "since", None) is not None:
        found = [each for chunk in _chunks(found) for each in _still(client, queue, chunk)]
    return [*found, *look.findings]


def _still(client: Client, queue: str, found: list[Finding]) -> list[Finding]:
    """Read the members of these findings again, at one moment. Return the findings whose members are unchanged.

    If a member has changed, the finding is dropped: the queue was read in pages, and changed meanwhile.
    """
    edits = [(edit.key, edit.member) for each in found for edit in each.edits]
    now = client.run(client.calls.reads.members(queue, edits))
    return [each for each in found if all(is_kept(edit, now) for edit in each.edits)]


def repair(
    client: Client,
    queue: str,
    findings: Iterable[Finding],
    *,
    by: str,
    audit: Audit | None = None,
) -> list[Finding]:
    """Repair the findings, examine the queue again, and return the findings that are left. It is safe to repeat the
    repair.

    A member that a client has changed since the doctor read it is not edited, but examined again. ``by``: the
    operator's name for the log. ``audit``: a function that also reads the audit database. Raises the errors of
    Client.run.
    """
    found = list(findings)
    passes = parts = 0
    while passes < PASSES and parts < PARTS_MAX:
        mendable = [f for f in found if f.mendable]
        if not mendable:
            break
        is_part = any(f.is_part for f in mendable)
        passes, parts = passes + (not is_part), parts + is_part
        if any(f.kind is Kind.LOG_STRAY for f in mendable):
            # First: usually no event can follow a stray entry, so not even a new epoch could begin.
            client.run(client.calls.audit.strike(queue))
        # Begins a new epoch if `meta` or the outbox is missing.
        client.run(client.calls.delivery.handshake(queue))
        carry_out(client, queue, mendable, by=by)
        if ripe := [f.job_id for f in mendable if f.kind is Kind.RIPE and f.job_id is not None]:
            client.run(client.calls.mail.look_again(queue, ripe, by=by, why=WHY))
        found = diagnose(client, queue, audit=audit)
    return found


def carry_out(client: Client, queue: str, findings: list[Finding], *, by: str) -> int:
    """Make the edits of the findings, and return the number of repaired findings.

    A finding is skipped if one of its members has changed since the doctor read the queue. ``by``: the operator's name
    for the log.
    """
    mended = 0
    # Each job is put at the head of its list, so the jobs that are first in line come last.
    for chunk in _chunks(sorted(findings, key=_place_in_list, reverse=True)):
        records = [(at, *edit) for at, finding in enumerate(chunk) for edit in finding.edits]
        mended += client.run(client.calls.audit.repair(queue, records, by=by))
    return mended


def _chunks(findings: list[Finding]) -> Iterator[list[Finding]]:
    chunk: list[Finding] = []
    size = 0
    for finding in findings:
        new = sum(len(edit.was) + len(edit.value) for edit in finding.edits)
        if chunk and size + new > CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
        chunk.append(finding)
        size += new
        if sum(len(each.edits) for each in chunk) >= CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _place_in_list(finding: Finding) -> int:
    return max((int(edit.value) for edit in finding.edits if edit.key in LISTS), default=0)
