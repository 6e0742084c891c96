"""Checks data that cannot be derived from the jobs' state lines: unreadable lines and limits, missing keys, and the
log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from rq_core.doctor import result_check, settings_check
from rq_core.doctor.box_check import count_entries, is_box_lost
from rq_core.doctor.comparison import Owner, box_finding, guarded
from rq_core.doctor.finding import RELOG, Edit, Finding, Kind
from rq_core.doctor.image import Image
from rq_core.doctor.line_check import unlike
from rq_core.doctor.log import FoldedLog
from rq_core.doctor.snapshot import View
from rq_core.model.durable.boxes import entry_in, header_in, life_of, signal_in, signal_of
from rq_core.model.events import JobRecord
from rq_core.model.job import limits_fault, spec_fault, spec_of
from rq_core.model.lib.text import counted, shorten
from rq_core.model.limits import scopes
from rq_core.model.limits.scopes import QUEUE
from rq_core.model.state_line import SHOWN_MAX, StoredJob
from rq_core.model.table.machine import (
    CLAIMED_STATES,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    State,
)
from rq_core.model.unique_names import digest_of

STRAYS_SHOWN: Final = 3
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")


def log_findings(image: Image, differing: dict[Owner, list[Edit]]) -> Iterator[Finding]:
    """Yield findings about missing or unreadable keys, and about differences from the log.

    ``differing``: owner → the edits of the indexes. If a finding restores a job's state line, the edits of the job's
    indexes move from ``differing`` to this finding.
    """
    yield from _specs(image)
    yield from _lineless(image.view)
    yield from _boxless(image)
    yield from _changed_values(image)
    yield from _boxes_by_log(image, differing)
    yield from _ripe(image)
    yield from _results(image)
    yield from _queue(image)
    yield from _caps(image.view)
    yield from _wake(image)
    yield from _log(image, differing)
    yield from _outbox(image.view.log)
    yield from settings_check.settings_findings(image.view)


def _specs(image: Image) -> Iterator[Finding]:
    specs, records = image.view.snapshot["jobs"], image.view.log.records
    for job_id, job in image.jobs.items():
        if job_id not in specs:
            after = "; the worker that claims it will fail it" if job.state is State.READY else ""
            says = f"job {job_id} is {job.state} and has no arguments{after}"
            yield Finding(Kind.NO_SPEC, says, job_id)
            continue
        record = records.get(job_id)
        digest = None if record is None else record.digest
        spec = spec_of(specs[job_id])
        wrong = spec_fault(spec, job.fields["task"], digest)
        if wrong := wrong or limits_fault(spec, *_limits(job, record)):
            yield Finding(Kind.SPEC_DIFFERS, f"job {job_id} is {job.state}, and {wrong}", job_id)


def _limits(job: StoredJob, record: JobRecord | None) -> tuple[int | None, int | None]:
    """Return a job's max_attempts and max_losses from the log; if the log lacks them, from the state line or the
    defaults."""
    if record is not None and record.complete:
        return record.max_attempts, record.max_losses
    fields = job.fields
    return (
        int(fields.get("attempts", DEFAULT_MAX_ATTEMPTS)),
        int(fields.get("losses", DEFAULT_MAX_LOSSES)),
    )


def _lineless(view: View) -> Iterator[Finding]:
    for job_id in sorted(view.untold):
        says = (
            f"job {job_id} has arguments but no state line, and the outbox does not have its state"
        )
        how = (
            "with --audit URL, --repair puts the job back, or removes its arguments if it has ended"
        )
        if job_id in view.log.doubtful:
            how = "the log cannot be believed about this job: run `rq-core audit verify`"
        yield Finding(Kind.NO_LINE, f"{says}; {how}", job_id)


def _boxless(image: Image) -> Iterator[Finding]:
    boxes = image.boxes
    for job_id, job in image.jobs.items():
        life = job.fields.get("life")
        if life is None:
            continue
        if is_box_lost(boxes.get(life), count_entries(boxes, life)):
            says = _boxless_says(job_id, boxes, life)
            if others := sorted(life for life, i in image.boxes_astray.items() if i == job_id):
                says += f"; its box may be the one of life {others[0]}, whose header names the job: it stays"
            yield Finding(Kind.NO_BOX, says, job_id)
    for lost in image.lost_signals:
        if lost.distrusted is not None:
            says = f"job {lost.job_id} has lost signals; {lost.distrusted}"
            yield Finding(Kind.NO_SIGNAL, says, lost.job_id)
        elif lost.unknown is not None:
            name, number = lost.unknown.facts["name"], lost.unknown.facts["message"]
            says = f"job {lost.job_id} has lost signal {number}, {name}, and the log does not have its value"
            yield Finding(Kind.NO_SIGNAL, f"{says}: it must be sent again", lost.job_id)


def _boxless_says(job_id: str, boxes: Mapping[str, str], life: str) -> str:
    header, there = header_in(boxes.get(life)), count_entries(boxes, life)
    says = f"job {job_id} has lost what its steps had saved"
    if header is not None and there:
        said = counted(header.entries, "entry", "entries")
        says = (
            f"the header of the box of job {job_id} says {said}, and entry {there + 1} is missing"
        )
    how = 'puts it back if the log has the values (audit_result="full")'
    return f"{says}, so its next step fails; `rq-core audit restore` {how}"


def _changed_values(image: Image) -> Iterator[Finding]:
    """Yield a finding for each saved value of a durable job that does not match the digest stored beside it.

    These are the values of steps, and of signals that no wait has taken yet.
    """
    for member, text in image.view.snapshot["boxes"].items():
        life = life_of(member)
        job_id, faults = image.box_owners.get(life), image.box_faults.get(life)
        if (
            job_id is None
            or "\n" not in text
            or (faults and (faults.is_part or member in faults.members))
        ):
            continue
        if ">" in member:
            what, signal = "signal", signal_in(text)
            value, digest = (signal.value, signal.digest) if signal else (None, None)
        else:
            what, entry = "step", entry_in(text)
            value, digest = (entry.value, entry.note) if entry else (None, None)
        if value is not None and _DIGEST.fullmatch(digest or "") and digest_of(value) != digest:
            name = text.partition(" ")[0]
            says = f"the value of {what} {name} of job {job_id} is not the one that was saved: its digest is another"
            yield Finding(
                Kind.BOX_DIFFERS, f"{says}; cancel the job, or write the true value back", job_id
            )


def _boxes_by_log(image: Image, differing: dict[Owner, list[Edit]]) -> Iterator[Finding]:
    """Yield a finding for each box (saved steps of a durable job) that differs from the log and cannot be repaired.

    Also yield one finding about all boxes whose events the log may lack.
    """
    for life, faults in image.box_faults.items():
        if faults.says and ("box", life) not in differing:
            yield box_finding(image, faults, ())
    moving = image.view.log.moving
    untold = [f for f in image.box_faults.values() if f.untold and f.job_id not in moving]
    if untold:
        first = untold[0]
        jobs = counted(len(untold), "durable job has", "durable jobs have")
        says = f"{jobs} entries or signals without an event, first {first.job_id}"
        why = image.view.log.boxes[first.life].unknown_since
        yield Finding(Kind.UNKNOWN, f"{says}: whether they are true is unknown, since {why}")


def _ripe(image: Image) -> Iterator[Finding]:
    """Yield a finding for each parked job whose signal has arrived, so that it could continue.

    A parked job whose waiting time is over needs no finding, because the next claim wakes it.
    """
    boxes, wanted = image.view.snapshot["boxes"], image.indexes["boxes"]
    for job_id, job in image.view.jobs.items():
        life, waits = job.fields.get("life"), job.fields.get("waits", "")
        if job.state is not State.PARKED or life is None or life not in boxes:
            continue
        if getattr(image.box_faults.get(life), "says", ()):
            continue  # Its signal may be made up.
        for number in waits.split(","):
            entry = entry_in(boxes.get(f"{life}|{number}"))
            signals = "" if entry is None else f"{life}>{signal_of(entry.name)}"
            is_there = signals in boxes and signals in wanted  # Otherwise the list is made up.
            if entry is not None and entry.kind == "wait" and is_there:
                says = f"job {job_id} is parked, and the signal {signal_of(entry.name)}, for which it waits, is there"
                kept = [("line", job_id, image.view.standing[job_id])]
                kept += [
                    ("boxes", member, boxes[member]) for member in (f"{life}|{number}", signals)
                ]
                edits = tuple(Edit(key, member, is_, is_) for key, member, is_ in kept)
                yield Finding(Kind.RIPE, says, job_id, edits)
                break


def _results(image: Image) -> Iterator[Finding]:
    """Yield findings about kept results that the doctor reports and does not change.

    Some differ from a log that must not be trusted. Others are values or times of ids that have no line in ``results``,
    or a line that gives no size, if the log does not show how their jobs ended.
    """
    kept = image.kept
    for job_id, doubt in kept.doubts.items():
        reasons = list(result_check.reasons(image.view, job_id, doubt.edits))
        says = "; ".join(reasons or ["what is kept differs from the log"])
        edits = tuple(edit._replace(value=edit.was) for edit in doubt.edits)
        yield Finding(
            Kind.INDEX, f"id {job_id!r}: {says}; {doubt.why}", edits=edits, owner=("id", job_id)
        )
    for job_id in kept.untold:
        has = [f"`{key}`" for key in ("returned", "kept") if job_id in image.view.snapshot[key]]
        line = image.view.snapshot["results"].get(job_id, "")
        lacks = "its line there says no size" if line else "`results` lacks it"
        says = f"{' and '.join(has)} {'has' if len(has) == 1 else 'have'} it, and {lacks}"
        says += "; the log does not show how its job ended, so it stays"
        was = image.view.snapshot["returned"].get(job_id, "")
        edits = (Edit("results", job_id, line, line), Edit("returned", job_id, was, was))
        yield Finding(Kind.UNKNOWN, f"id {job_id!r}: {says}", edits=edits, owner=("id", job_id))


def _queue(image: Image) -> Iterator[Finding]:
    snapshot = image.view.snapshot
    if not image.view.facts.get("epoch"):
        if any(snapshot.values()):
            says = (
                "`meta` is missing: a new epoch begins, with default settings;"
                " whether the queue was paused or fair is not known"
            )
            yield Finding(Kind.NO_META, says, edits=(Edit("meta", "epoch", "", ""),))
    elif not snapshot["outbox"]:
        yield Finding(Kind.NO_OUTBOX, "the outbox is missing: a new epoch begins")


def _caps(view: View) -> Iterator[Finding]:
    stored = view.snapshot["caps"]
    for name, text in stored.items():
        if name not in view.limits and scopes.family_of(name) != scopes.WEIGHT:
            says = f"the limit of {name} cannot be read, so it has no effect: {text!r}"
            yield Finding(Kind.UNREADABLE, says)
    noted = [name for name in ("caps_by_task", "caps_by_key") if view.fact(name)]
    if noted and not stored:
        says = (
            f"the limits are missing (`meta` has {noted[0]}, and `caps` is empty): workers declare theirs"
            " again when they start; an operator must set live limits again"
        )
        yield Finding(Kind.NO_CAPS, says)


def _wake(image: Image) -> Iterator[Finding]:
    view = image.view
    tokens = len(view.snapshot["wake"])
    # Regardless of its other edits, repair.lua leaves one token.
    edits = (Edit("wake", "", str(tokens), "1"),)
    if tokens > 1:
        says = f"there are {tokens} wake tokens instead of one"
        yield Finding(Kind.INDEX, says, edits=edits)
    elif not tokens and view.facts.get("epoch") and not view.is_fuzzy and not _gated(image):
        ready = [job for _, job in image.in_state(State.READY)]
        places = image.places
        count = sum(job.lane is None or places[job.lane].on is None for job in ready)
        if count:
            are_ready = counted(count, "job is ready", "jobs are ready")
            says = f"{are_ready}, and no token wakes a worker"
            yield Finding(Kind.NO_WAKE, says, edits=edits)


def _gated(image: Image) -> bool:
    """Return whether claims give out no jobs now, because the queue is paused, at its limit, or has too many events
    that the mirror has not copied.

    claim/claiming.lua applies the same conditions.
    """
    view = image.view
    most = view.limit(QUEUE).most
    full = most is not None and len(image.in_state(*CLAIMED_STATES)) >= most
    backlogged = view.facts.get("audit") == "on" and any(
        view.fact(f"backlog_{unit}") >= 2 * view.fact(f"backlog_max_{unit}")
        for unit in ("jobs", "bytes")
    )
    return full or backlogged or bool(view.fact("paused"))


def _log(image: Image, differing: dict[Owner, list[Edit]]) -> Iterator[Finding]:
    view = image.view

    def relogged(kind: Kind, job_id: str, says: str) -> Finding:
        """Return a finding. Its repair appends an event with the job's whole state, and restores the job's state line
        if the log has one."""
        owner = ("job", job_id)
        edits = differing.pop(owner, []) if job_id in image.restored else []
        relog = Edit("outbox", job_id, "", RELOG)
        return Finding(kind, says, job_id, guarded(image, owner, [*edits, relog]))

    for job_id, job in view.jobs.items():
        record = view.log.records.get(job_id)
        if record is None:
            if view.log.whole and job_id not in view.log.doubtful:
                says = f"job {job_id} is {job.state}, and the log does not have it"
                yield relogged(Kind.UNLOGGED, job_id, says)
        elif differs := list(_unlike(job, record)):
            says = f"job {job_id} differs from the log: {', '.join(differs)}"
            yield relogged(Kind.LOG_DIFFERS, job_id, says)
    for job_id, why in view.unreadable.items():
        line = shorten(view.lines[job_id], SHOWN_MAX)
        says = f"the state of job {job_id} cannot be read, {why}: {line!r}"
        if job_id in image.restored:
            yield relogged(Kind.UNREADABLE, job_id, says)
        else:
            says += "; the log does not have its state"
            yield Finding(Kind.UNREADABLE, says, job_id)
    for job_id, record in view.log.records.items():
        if record.state is not None and job_id not in view.lines:
            says = f"job {job_id} is {record.state} by the log, and Redis does not have it"
            if job_id in image.restored:
                says += "; its arguments are there, so it can be put back"
            elif job_id in view.log.only_sql:
                yield Finding(Kind.LOST, f"{says}; `rq-core audit restore` puts it back", job_id)
                continue
            yield relogged(Kind.LOST, job_id, says)


def _outbox(log: FoldedLog) -> Iterator[Finding]:
    for entry_id in log.gaps:
        yield Finding(Kind.LOG_GAP, f"the outbox lacks entries before {entry_id}")
    if strays := log.strays:
        says = (
            f"the outbox has {', '.join(strays[:STRAYS_SHOWN])}{', …' if len(strays) > STRAYS_SHOWN else ''}: no script"
            " begins with such a number, so a client added it with XADD; the mirror stops there, and perhaps every call"
        )
        yield Finding(Kind.LOG_STRAY, says)
    for unreadable in log.unreadable:
        yield Finding(Kind.LOG_UNREADABLE, f"the outbox cannot be read at {unreadable}")


def _unlike(job: StoredJob, record: JobRecord) -> Iterator[str]:
    if job.state is not record.state:
        yield f"{job.state} by its state, {record.state or 'gone'} by the log"
    for name, actual, logged in unlike(job, record):
        yield f"{name}={actual}, {logged} by the log"
