"""Judges the records of a chaos run, without I/O. test_judge.py shows that it finds each planted problem.

The report has the columns of the tool Jepsen: attempted, acknowledged, lost, unexpected and duplicated. Further columns
are about caps and the log.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from rq_core.model.table.machine import Event, State
from tests.rigs.chaos.records import Fault, Interval, Line, Logged, Records
from tests.rigs.judge.caps import Mark, at_once
from tests.rigs.judge.logged import ABSENT, CLAIM_ENDS, GIVEN_BACK, NO_STEP, SETTLED
from tests.rigs.judge.times import percentile
from tests.rigs.judge.witnessed import Runs

MIRROR_FAULTS: Final = frozenset({"mirror_kill", "mirror_stop", "sql_lock", "sql_stop"})
"""The faults of the mirror and of SQL, which jobs need not notice. After these faults, recovery is measured until the
mirror commits again."""
TRIM: Final = "outbox_trim"
LOSSES: Final = frozenset({"aof_cut", "old_snapshot", "flushall", TRIM})
"""The faults that remove acknowledged data from Redis on purpose. Only such data may be lost, and only if the log names
the job or reports an interval that includes the job."""
CLAIM_LATE_MS: Final = 2_000.0
"""How long (ms) after its claim a handler may start. The worker may have been suspended in between."""


def is_trimmed(gap: Interval, faults: Sequence[Fault]) -> bool:
    """Return whether this gap of the log was caused by a fault that emptied an outbox."""
    return any(
        fault.kind == TRIM and gap.after_ms <= fault.ended_ms and fault.began_ms <= gap.until_ms
        for fault in faults
    )


@dataclass
class Recovery:
    """The seconds until work continued, after each fault of one kind."""

    kind: str
    times: int = 0
    seconds: list[float] = field(default_factory=list)
    """The recovery time (s) of each fault after which work continued: from the end of the fault until one of the jobs
    that were claimed after it has ended. For a fault of the mirror or of SQL: until the first commit."""

    def line(self) -> str:
        p50, p99 = (percentile(self.seconds, share) for share in (0.5, 0.99))
        most = max(self.seconds, default=0.0)
        return (
            f"{self.kind:16} {self.times:5} {len(self.seconds):9} {p50:8.2f} {p99:8.2f} {most:8.2f}"
        )


@dataclass
class Findings:
    """The figures and problems that the judge found. ``audit verify`` has its own findings."""

    attempted: int = 0
    acknowledged: int = 0
    succeeded: int = 0
    dead: int = 0
    lost: int = 0
    """The number of acknowledged jobs that have not ended and are not alive, plus the number of jobs that succeeded
    according to the log although no run came to its end."""
    unexpected: int = 0
    """The number of jobs that were never attempted, of runs without a claim, and of jobs forgotten without a cause."""
    duplicated_explained: int = 0
    """The number of jobs that ran to their end more than once, and for which the log has an expired lease, a rollback
    or a loss in between."""
    duplicated_unexplained: int = 0
    cap_violations: int = 0
    """The number of times that a run began in a scope whose cap was full, according to the witness file. Only runs
    whose claims are in force count."""
    orphaned_reported: int = 0
    """The number of jobs about which Redis forgot something that the log reports."""
    unreported_loss: int = 0
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    held_s: list[float] = field(default_factory=list)
    """The time (s) from the kill of a worker until a job that the worker held was claimed again, for each such job."""
    lag_s: list[float] = field(default_factory=list)
    """The time (s) from each look at an outbox until SQL had the last entry of that outbox."""
    problems: list[str] = field(default_factory=list)
    """The problems as sentences, each with its job."""

    @property
    def recovery_p99_s(self) -> float:
        return percentile([s for each in self.recoveries.values() for s in each.seconds], 0.99)

    @property
    def mirror_lag_p99_s(self) -> float:
        return percentile(self.lag_s, 0.99)


class Losses:
    """The losses of Redis that a fault explains: the log reports the loss, and the fault removed data at that time."""

    def __init__(self, records: Records) -> None:
        self._told = records.told
        self._named = records.named
        taken = [fault for fault in records.faults if fault.kind in LOSSES]
        self._intervals: dict[str, list[Interval]] = defaultdict(list)
        for each in records.intervals:
            if any(f.began_ms <= each.until_ms and each.after_ms <= f.ended_ms for f in taken):
                self._intervals[each.queue].append(each)

    def covers(self, job_id: str) -> bool:
        """Return whether a loss that a fault of the run explains may have taken this job from Redis.

        This is so if the log names the job as lost, or if the producer may have sent its call during such a loss.
        """
        if job_id in self._named:
            return True
        told = self._told.get(job_id)
        return told is not None and any(
            told.tried_ms <= each.until_ms
            and (told.acknowledged_ms is None or each.after_ms <= told.acknowledged_ms)
            for each in self._intervals[told.queue]
        )

    def covers_start(self, line: Line) -> bool:
        """Return whether Redis may have lost the claim of this run. ``line`` is the first line of the run."""
        return self.next_after(line) is not None and any(
            each.after_ms <= line.at_ms <= each.until_ms + CLAIM_LATE_MS
            for each in self._intervals[self._told[line.job].queue]
        )

    def next_after(self, line: Line) -> float | None:
        """Return the end (Unix ms) of the first loss that ended after this line of the witness file, or None.

        A claim that Redis forgot in this loss counts until then.
        """
        told = self._told.get(line.job)
        untils = [each.until_ms for each in self._intervals[told.queue]] if told else []
        return min((until for until in untils if until + CLAIM_LATE_MS >= line.at_ms), default=None)


def judge(records: Records) -> Findings:
    answers = records.answers
    found = Findings(len(answers.attempted), len(answers.acknowledged))
    stories: dict[str, list[Logged]] = defaultdict(list)
    for event in records.events:
        stories[event.job].append(event)
    runs: dict[str, list[Line]] = defaultdict(list)
    for line in records.witness:
        runs[line.job].append(line)
    ends = {job_id: _end(story) for job_id, story in stories.items()}
    found.succeeded = sum(end == Event.SUCCEEDED for end in ends.values())
    found.dead = sum(end == State.DEAD for end in ends.values())
    losses = Losses(records)
    orphaned = {event.job for event in records.events if event.orphaned}
    found.orphaned_reported = len(orphaned | records.named)
    if found.orphaned_reported and not any(fault.kind in LOSSES for fault in records.faults):
        found.unexpected += found.orphaned_reported
        found.problems.append(f"forgotten, though nothing took it: {sorted(orphaned)[:3]}…")
    _look_for_losses(found, records, ends, runs, losses, orphaned)
    _look_for_strangers(found, records, stories, runs, losses)
    for job_id, lines in runs.items():
        _look_for_doubles(found, job_id, lines, stories[job_id], losses)
    _look_at_caps(found, records, stories, losses)
    found.recoveries = _recoveries(records, stories)
    found.held_s = list(_held(records, stories))
    found.lag_s = list(_lags(records))
    return found


def _end(story: Sequence[Logged]) -> str | None:
    """Return the event that ended the job, or ``dead``. Return None if the job has no end.

    Events that Redis lost do not count.
    """
    last = next(
        (e for e in reversed(story) if not e.orphaned and e.event not in NO_STEP),
        None,
    )
    if last is None:
        return None
    if last.event == Event.DIED or (last.event == Event.LEASE_EXPIRED and last.target == "dead"):
        return State.DEAD
    return last.event if last.event in ABSENT else None


def _look_for_losses(
    found: Findings,
    records: Records,
    ends: dict[str, str | None],
    runs: dict[str, list[Line]],
    losses: Losses,
    orphaned: set[str],
) -> None:
    for job_id in sorted(records.answers.acknowledged):
        end = ends.get(job_id)
        ran = any(line.what == "end" for line in runs[job_id])
        hollow = end == Event.SUCCEEDED and not ran
        nowhere = end is None and job_id not in records.live
        told = not hollow and (job_id in orphaned or losses.covers(job_id))
        # One that ran to its end is not lost: the log lacks how it ended, and says that it may.
        if hollow or (nowhere and not (ran and told)):
            found.lost += 1
            what = "succeeded, but no run of it came to its end" if hollow else "is nowhere"
            found.unreported_loss += not told
            if not told:
                found.problems.append(f"lost: {job_id} {what}")


def _look_for_strangers(
    found: Findings,
    records: Records,
    stories: dict[str, list[Logged]],
    runs: dict[str, list[Line]],
    losses: Losses,
) -> None:
    for job_id in records.answers.strangers({*stories, *runs, *records.live}):
        found.unexpected += 1
        found.problems.append(f"unexpected: {job_id} was never attempted")
    known = {
        (event.job, event.claim)
        for event in records.events
        if event.event == Event.CLAIMED and event.claim is not None
    }
    known |= {(line.job, line.claim) for line in records.witness if losses.covers_start(line)}
    ran = [(line.job, line.claim) for line in records.witness]
    for job_id, claim in Runs(ran, ()).unlogged(known):
        found.unexpected += 1
        found.problems.append(f"unexpected: {job_id} ran in claim {claim}, which is not logged")


def _look_for_doubles(
    found: Findings,
    job_id: str,
    lines: Sequence[Line],
    story: Sequence[Logged],
    losses: Losses,
) -> None:
    whole = sorted(line.claim for line in lines if line.what == "end")
    if len(whole) < 2:
        return
    # The number of a claim that was lost is given again.
    lost = {event.claim for event in story if event.orphaned}
    lost |= {line.claim for line in lines if line.what == "start" and losses.covers_start(line)}
    given_back = {event.claim for event in story if event.event in GIVEN_BACK} | lost
    repeated = {claim for claim, count in Counter(whole).items() if count > 1}
    # Of all but the last, the claim must have been taken away; and no claim may have been run twice.
    if all(claim in given_back for claim in whole[:-1]) and repeated <= lost:
        found.duplicated_explained += 1
    else:
        found.duplicated_unexplained += 1
        found.problems.append(f"unexplained: {job_id} ran to its end in claims {whole}")


def _look_at_caps(
    found: Findings, records: Records, stories: dict[str, list[Logged]], losses: Losses
) -> None:
    """Count, for each scope, the runs that began while the cap was full.

    A run counts from its first to its last line in the witness file. It counts no longer than its claim is in force,
    and no longer than Redis remembers the claim. A killed run has no last line, and counts until its claim ends.
    """
    marks: list[Mark] = []
    for run in _runs(records.witness):
        until = run.until_ms(stories[run.start.job], losses)
        for scope in run.start.scopes:
            marks.append(Mark(run.start.at_ms, 1, scope, run.start.job))
            marks.append(Mark(max(until, run.start.at_ms), -1, scope, run.start.job))
    for (at_ms, _, scope, job_id), running in at_once(marks):
        limit = records.limits.get(scope)
        if limit is not None and running > limit:
            found.cap_violations += 1
            found.problems.append(
                f"cap: {job_id} is number {running} of {scope}, cap {limit}, at {at_ms:.1f}"
            )


class Run(NamedTuple):
    """One run of a handler, as the handler's lines in the witness file show it."""

    start: Line
    last_ms: float | None
    """The time of the last line, or None if the handler was killed."""

    def until_ms(self, story: Sequence[Logged], losses: Losses) -> float:
        """Return the time (Unix ms) until which the run counts: the time of its last line, or the earlier end of its
        claim."""
        mine = [event for event in story if event.claim == self.start.claim]
        # The number of a claim that was lost is given again: its own is the last one before it began.
        before = [
            place
            for place, event in enumerate(mine)
            if event.event == Event.CLAIMED and event.at_ms <= self.start.at_ms
        ]
        own = mine[before[-1] :] if before else []
        claimed = own[0] if own else None
        ends = [
            (float(event.at_ms), event.event in GIVEN_BACK)
            for event in own
            if event.event in CLAIM_ENDS
        ]
        never = float("inf")
        taken = min((at_ms for at_ms, given_back in ends if given_back), default=never)
        if claimed is None or claimed.orphaned or losses.covers(self.start.job):
            taken = min(taken, losses.next_after(self.start) or never)
        ended = min((at_ms for at_ms, _ in ends), default=never)
        return min(self.last_ms if self.last_ms is not None else ended, taken)


def _runs(lines: Sequence[Line]) -> Iterator[Run]:
    """Yield each run of a handler. A run without an end line was killed."""
    waiting: dict[tuple[str, int], list[Line]] = defaultdict(list)
    for line in lines:
        claim = (line.job, line.claim)
        if line.what == "start":
            waiting[claim].append(line)
        elif waiting[claim]:
            yield Run(waiting[claim].pop(0), line.at_ms)
    for starts in waiting.values():
        for start in starts:
            yield Run(start, None)


def _recoveries(records: Records, stories: dict[str, list[Logged]]) -> dict[str, Recovery]:
    # (claimed at, ended at) of every claim that came to an end by itself.
    claimed: dict[tuple[str, int | None], int] = {}
    spans = []
    for event in (event for story in stories.values() for event in story):
        claim = (event.job, event.claim)
        if event.event == Event.CLAIMED:
            claimed[claim] = event.at_ms
        elif event.event in SETTLED and claim in claimed:
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


def _held(records: Records, stories: dict[str, list[Logged]]) -> Iterator[float]:
    for fault in records.faults:
        for job_id in fault.held:
            claims = [e.at_ms for e in stories[job_id] if e.event == Event.CLAIMED]
            again = min((at_ms for at_ms in claims if at_ms >= fault.ended_ms), default=None)
            if again is not None:
                yield (again - fault.ended_ms) / 1000


def _next(fault: Fault, spans: Sequence[tuple[float, float]]) -> float | None:
    """Return the earliest end (Unix ms) of a span that began after the fault, or None if no span began then."""
    return min((until for since, until in spans if since >= fault.ended_ms), default=None)


def _commits(records: Records) -> list[tuple[float, float]]:
    """Return the times (Unix ms) at which the rig first saw a new last entry in SQL.

    Each time is a pair of equal numbers, a span without length.
    """
    before: dict[str, tuple[int, int]] = {}
    found = []
    for look in records.progress:
        if look.mirrored is not None and look.mirrored != before.get(look.queue):
            before[look.queue] = look.mirrored
            found.append((look.at_ms, look.at_ms))
    return found


def _lags(records: Records) -> Iterator[float]:
    """Yield the lags of the mirror in seconds, one for each time that the rig looked at an outbox.

    A lag is the time until SQL has the entry that was then the last one of the outbox.
    """
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
