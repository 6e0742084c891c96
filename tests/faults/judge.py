"""What the records of a chaos run come to. Without I/O: made-up records show that each lie is found (test_judge.py).

The columns are Jepsen's: attempted, acknowledged, lost, unexpected, duplicated; with what a queue with caps and a log
has to answer for besides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rq_core.machine import Event, State
from tests.faults.records import Fault, Line, Logged, Records
from tests.support.live.replay import percentile

MIRROR_FAULTS: Final = frozenset({"mirror_kill", "mirror_stop", "sql_lock"})
"""Those that jobs need not notice: recovered is when SQL goes on."""

GIVEN_BACK: Final = frozenset({Event.LEASE_EXPIRED, Event.ROLLED_BACK})
"""Ends of a claim after which its handler may still be running, or be run again from the start."""
_CLAIM_ENDS: Final = GIVEN_BACK | {
    Event.SUCCEEDED,
    Event.RETRIED,
    Event.DIED,
    Event.CANCELLED,
}
_NO_STEP: Final = frozenset({Event.SETTLEMENT_REFUSED, Event.BASELINE})
"""Events after which a job stands where it stood."""
_JOB_ENDS: Final = frozenset(
    {Event.DIED, Event.CANCELLED, Event.DISCARDED, Event.PRUNED, Event.REMOVED}
)


@dataclass
class Recovery:
    """How soon work went on after the faults of one kind."""

    kind: str
    times: int = 0
    seconds: list[float] = field(default_factory=list)
    """Of each that was followed by any: from its end to the end of the first job that was claimed after it; for the
    mirror's own faults, to the first commit."""

    def line(self) -> str:
        p50, p99 = (percentile(self.seconds, share) for share in (0.5, 0.99))
        most = max(self.seconds, default=0.0)
        return (
            f"{self.kind:16} {self.times:5} {len(self.seconds):9} {p50:8.2f} {p99:8.2f} {most:8.2f}"
        )


@dataclass
class Findings:
    """The verdict, but for what ``audit verify`` says."""

    attempted: int = 0
    acknowledged: int = 0
    succeeded: int = 0
    dead: int = 0
    lost: int = 0
    """Acknowledged, and neither ended nor live; or said to have succeeded, while no run of it came to its end."""
    unexpected: int = 0
    """Never attempted; or runs that no claim of the log covers."""
    duplicated_explained: int = 0
    """Ran to their end more than once, and the log has an expired lease, a rollback or a loss between."""
    duplicated_unexplained: int = 0
    cap_violations: int = 0
    """As the witness saw it: more runs under a scope, each with its claim in force, than its cap."""
    orphaned_reported: int = 0
    """Jobs of which Redis forgot something, and the log says so."""
    unreported_loss: int = 0
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    lag_s: list[float] = field(default_factory=list)
    """From each look at an outbox until SQL had what was in it."""
    problems: list[str] = field(default_factory=list)
    """In words, with the job."""

    @property
    def recovery_p99_s(self) -> float:
        return percentile([s for each in self.recoveries.values() for s in each.seconds], 0.99)

    @property
    def mirror_lag_p99_s(self) -> float:
        return percentile(self.lag_s, 0.99)


def judge(records: Records) -> Findings:
    found = Findings(len(records.attempted), len(records.acknowledged))
    stories: dict[str, list[Logged]] = defaultdict(list)
    for event in records.events:
        stories[event.job].append(event)
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in records.witness:
        runs[line.job].append(line)
    ends = {job_id: _end(story) for job_id, story in stories.items()}
    found.succeeded = sum(end == Event.SUCCEEDED for end in ends.values())
    found.dead = sum(end == State.DEAD for end in ends.values())
    orphaned = {event.job for event in records.events if event.orphaned}
    found.orphaned_reported = len(orphaned)
    _look_for_losses(found, records, ends, runs, orphaned)
    _look_for_strangers(found, records, stories, runs)
    for job_id, lines in runs.items():
        _look_for_doubles(found, job_id, lines, stories[job_id])
    _look_at_caps(found, records, stories)
    found.recoveries = _recoveries(records, stories)
    found.lag_s = list(_lags(records))
    return found


def _end(story: Sequence[Logged]) -> str | None:
    """How the job ended by what survives of its history; None: it did not."""
    last = next(
        (e for e in reversed(story) if not e.orphaned and e.event not in _NO_STEP),
        None,
    )
    if last is None:
        return None
    if last.event == Event.DIED or (last.event == Event.LEASE_EXPIRED and last.target == "dead"):
        return State.DEAD
    return last.event if last.event == Event.SUCCEEDED or last.event in _JOB_ENDS else None


def _look_for_losses(
    found: Findings,
    records: Records,
    ends: dict[str, str | None],
    runs: dict[str, list[Line]],
    orphaned: set[str],
) -> None:
    for job_id in sorted(records.acknowledged):
        end = ends.get(job_id)
        hollow = end == Event.SUCCEEDED and not any(line.what == "end" for line in runs[job_id])
        if (end is None and job_id not in records.live) or hollow:
            found.lost += 1
            what = "succeeded, but no run of it came to its end" if hollow else "is nowhere"
            told = job_id in orphaned and not hollow
            found.unreported_loss += not told
            found.problems.append(f"lost{' (reported)' if told else ''}: {job_id} {what}")


def _look_for_strangers(
    found: Findings,
    records: Records,
    stories: dict[str, list[Logged]],
    runs: dict[str, list[Line]],
) -> None:
    for job_id in sorted({*stories, *runs, *records.live} - records.attempted):
        found.unexpected += 1
        found.problems.append(f"unexpected: {job_id} was never attempted")
    for job_id, lines in runs.items():
        claims = {event.claim for event in stories[job_id] if event.event == Event.CLAIMED}
        for claim in sorted({line.claim for line in lines} - claims):
            found.unexpected += 1
            found.problems.append(f"unexpected: {job_id} ran in claim {claim}, which is not logged")


def _look_for_doubles(
    found: Findings, job_id: str, lines: Sequence[Line], story: Sequence[Logged]
) -> None:
    whole = sorted(line.claim for line in lines if line.what == "end")
    if len(whole) < 2:
        return
    given_back = {event.claim for event in story if event.event in GIVEN_BACK or event.orphaned}
    # Of all but the last, the claim must have been taken away; and no claim may have been run twice.
    if all(claim in given_back for claim in whole[:-1]) and len(set(whole)) == len(whole):
        found.duplicated_explained += 1
    else:
        found.duplicated_unexplained += 1
        found.problems.append(f"unexplained: {job_id} ran to its end in claims {whole}")


def _look_at_caps(found: Findings, records: Records, stories: dict[str, list[Logged]]) -> None:
    """Count, scope by scope, how often one more began than the cap allows.

    A run counts while its claim is in force: from its first line to its last or, if the log took the claim away
    before, until then. One that wrote no last line was killed, and its claim counts until the log ends it.
    """
    ended = {
        (event.job, event.claim): float(event.at_ms)
        for story in stories.values()
        for event in story
        if event.event in _CLAIM_ENDS
    }
    taken = {
        (event.job, event.claim): float(event.at_ms)
        for story in stories.values()
        for event in story
        if event.event in GIVEN_BACK
    }
    never = float("inf")
    last = {(line.job, line.claim): line.at_ms for line in records.witness if line.what != "start"}
    marks: list[tuple[float, int, str, str]] = []
    for line in records.witness:
        if line.what != "start":
            continue
        claim = (line.job, line.claim)
        until = min(last.get(claim, ended.get(claim, never)), taken.get(claim, never))
        for scope in line.scopes:
            # An end and a start at one moment: the end came first, being witnessed before it is settled.
            marks.append((line.at_ms, 1, scope, line.job))
            marks.append((max(until, line.at_ms), -1, scope, line.job))
    running: Counter[str] = Counter()
    for at_ms, change, scope, job_id in sorted(marks):
        running[scope] += change
        limit = records.limits.get(scope)
        if change > 0 and limit is not None and running[scope] > limit:
            found.cap_violations += 1
            found.problems.append(
                f"cap: {job_id} is number {running[scope]} of {scope}, cap {limit}, at {at_ms:.1f}"
            )


def _recoveries(records: Records, stories: dict[str, list[Logged]]) -> dict[str, Recovery]:
    # (claimed at, ended at) of every claim that came to an end by itself.
    claimed: dict[tuple[str, int | None], int] = {}
    spans = []
    for event in (event for story in stories.values() for event in story):
        claim = (event.job, event.claim)
        if event.event == Event.CLAIMED:
            claimed[claim] = event.at_ms
        elif event.event in _CLAIM_ENDS - GIVEN_BACK and claim in claimed:
            spans.append((claimed[claim], event.at_ms))
    commits = _commits(records)
    found: dict[str, Recovery] = {}
    for fault in sorted(records.faults):
        recovery = found.setdefault(fault.kind, Recovery(fault.kind))
        recovery.times += 1
        back = _next(fault, commits if fault.kind in MIRROR_FAULTS else spans)
        if back is not None:
            recovery.seconds.append(max(0.0, back - fault.ended_ms) / 1000)
    return found


def _next(fault: Fault, spans: Sequence[tuple[float, float]]) -> float | None:
    """The end of the first of these that began after the fault had ended."""
    return min((until for since, until in spans if since >= fault.ended_ms), default=None)


def _commits(records: Records) -> list[tuple[float, float]]:
    """When SQL was seen to have gone on."""
    before: dict[str, tuple[int, int]] = {}
    found = []
    for look in records.progress:
        if look.mirrored is not None and look.mirrored != before.get(look.queue):
            before[look.queue] = look.mirrored
            found.append((look.at_ms, look.at_ms))
    return found


def _lags(records: Records) -> Iterator[float]:
    """For each look at an outbox, how long it took until SQL had its last entry."""
    by_queue: dict[str, list[tuple[tuple[int, int], float]]] = defaultdict(list)
    for look in records.progress:
        if look.mirrored is not None:
            by_queue[look.queue].append((look.mirrored, look.at_ms))
    for look in records.progress:
        reached = by_queue[look.queue]
        if look.written is None:
            continue
        place = bisect_left(reached, (look.written, look.at_ms))
        if place < len(reached):
            yield max(0.0, reached[place][1] - look.at_ms) / 1000
