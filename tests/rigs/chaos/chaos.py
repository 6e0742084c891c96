"""One chaos run. It puts load on the queues, applies faults one after another, lets all jobs end, and gives a verdict.

See scripts/prove/chaos.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.model.table.machine import Event
from tests.kit.servers import Engine, PostgresServer
from tests.kit.wait import wait_until
from tests.rigs.chaos import tasks
from tests.rigs.chaos.judge import Findings, is_trimmed, judge
from tests.rigs.chaos.nemesis import Nemesis
from tests.rigs.chaos.records import (
    Records,
    read_events,
    read_gaps,
    read_intervals,
    read_named,
    read_told,
    read_witness,
    told_of_ticks,
)
from tests.rigs.chaos.stage import MIRROR, PRODUCER, SUPERVISOR, Stage, audit_verify
from tests.rigs.judge.times import percentile
from tests.rigs.stage import WORKER

RATE: Final = 30.0
DRAIN_S: Final = 90.0
"""The time (s) after the last fault within which every job must have ended. Afterwards SQL has the same time again to
get all events."""


@dataclass
class Outcome:
    """The result of a run of the chaos proof."""

    seed: int
    minutes: float
    faults: int
    findings: Findings
    verify: str
    """The verdict of ``audit verify``: holds, violated or unknown."""
    problems: list[str] = field(default_factory=list)
    gaps: int = 0
    """The number of times that an outbox was emptied before the mirror had read it. The log records each time, but not
    the lost contents."""
    ticks: int = 0
    """The number of instants of schedules in the log."""

    def document(self) -> dict[str, Any]:
        """Return the result as a dict. Under ``--json`` it is the last line of the output."""
        f = self.findings
        return {
            "seed": self.seed, "minutes": self.minutes, "faults": self.faults,
            "attempted": f.attempted, "acknowledged": f.acknowledged,
            "succeeded": f.succeeded, "dead": f.dead, "lost": f.lost, "unexpected": f.unexpected,
            "duplicated_explained": f.duplicated_explained,
            "duplicated_unexplained": f.duplicated_unexplained,
            "cap_violations": f.cap_violations, "orphaned_reported": f.orphaned_reported,
            "unreported_loss": f.unreported_loss,
            "recovery_p99_s": round(f.recovery_p99_s, 3),
            "mirror_lag_p99_s": round(f.mirror_lag_p99_s, 3),
            "verify": self.verify, "gaps": self.gaps, "ticks": self.ticks,
            "held_p50_s": round(percentile(f.held_s, 0.5), 3),
            "held_max_s": round(max(f.held_s, default=0.0), 3),
            "kinds": {
                name: {
                    "times": each.times, "recovered": len(each.seconds),
                    "recovery_p50_s": round(percentile(each.seconds, 0.5), 3),
                    "recovery_p99_s": round(percentile(each.seconds, 0.99), 3),
                    "recovery_max_s": round(max(each.seconds, default=0.0), 3),
                }
                for name, each in sorted(f.recoveries.items())
            },
            "problems": self.problems,
        }  # fmt: skip

    @property
    def clean(self) -> bool:
        f = self.findings
        wrong = f.unreported_loss + f.unexpected + f.duplicated_unexplained + f.cap_violations
        proved = self.verify == "holds" or (self.verify == "unknown" and self.gaps > 0)
        return proved and wrong == 0 and not self.problems

    def table(self) -> str:
        head = f"{'fault':16} {'times':>5} {'recovered':>9} {'p50 s':>8} {'p99 s':>8} {'max s':>8}"
        rows = [each.line() for _, each in sorted(self.findings.recoveries.items())]
        held = self.findings.held_s
        own = (
            f"{len(held)} jobs that killed workers held were claimed again:"
            f" p50 {percentile(held, 0.5):.2f} s, max {max(held, default=0.0):.2f} s"
        )
        return "\n".join([head, *rows, own])


def run(
    place: Path,
    *,
    minutes: float,
    seed: int,
    audit_url: str,
    engine: Engine,
    rate: float = RATE,
    kinds: Sequence[str] | None = None,
    postgres: PostgresServer | None = None,
    far: bool = False,
    on_fault: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Make one run. Raises AssertionError if a process does not start, or does not end after SIGTERM."""
    draw = random.Random(seed)
    stage = Stage(place, audit_url, engine, seed, rate, far=far)
    stage.postgres = postgres
    records = Records(limits=tasks.LIMITS)
    problems = []
    with stage.up() as client:
        nemesis = Nemesis(stage, client, draw)
        until = time.monotonic() + minutes * 60
        for kind in nemesis.schedule(kinds):
            stage.rest(draw.uniform(0.5, 2.0))
            if time.monotonic() >= until:
                break
            records.faults.append(nemesis.apply(kind))
            on_fault(kind)
        # Everything is healed; what was killed last is started again.
        stage.mend()
        stage.rest(1.0)
        stage.stop(PRODUCER)
        _end_schedules(client)
        problems += _wait(stage, lambda: stage.drained(client), "jobs are left", DRAIN_S)
        stage.stop(WORKER, SUPERVISOR)
        problems += _wait(stage, lambda: stage.level(client), "SQL is behind", DRAIN_S)
        records.live = stage.live(client)
        stage.stop(MIRROR)
        said = audit_verify(stage.server.url, audit_url)
        records.events = read_events(stage.database)
        records.named = read_named(stage.database)
        gaps = read_gaps(stage.database)
        records.intervals = [*read_intervals(stage.database, said), *gaps.values()]
    records.progress = stage.progress
    records.told = read_told(stage.told())
    records.witness = read_witness(stage.witness)
    records.told |= told_of_ticks(records, tasks.SCHEDULES)
    findings = judge(records)
    findings.cap_violations += sum(each["invariant"] == "I3" for each in said["violations"])
    problems += [f"verify: {json.dumps(each)}" for each in said["violations"]]
    trimmed = {entry for entry, gap in gaps.items() if is_trimmed(gap, records.faults)}
    problems += [
        f"verify cannot tell ({name}): {note['says']}"
        for name, queue in said["queues"].items()
        for note in queue["unknown"]
        if (name, note["number"]) not in trimmed
    ]
    problems += findings.problems
    ticks = sum(each.event == Event.TICKED for each in records.events)
    return Outcome(
        seed, minutes, len(records.faults), findings, said["verdict"], problems, len(trimmed), ticks
    )


def _end_schedules(client: Client) -> None:
    """Remove all schedules, so that no more jobs come. A worker that restarts later does not declare them again."""
    for name, queue in tasks.SCHEDULES.items():
        client.run(client.calls.schedules.change(queue, name, "remove"))


def _wait(stage: Stage, done: Callable[[], bool], what: str, seconds: float) -> list[str]:
    """Wait until a condition is true, and keep all processes running meanwhile.

    Return one problem if the time is over, otherwise an empty list.
    """

    def mended() -> bool:
        stage.mend()
        return done()

    try:
        wait_until(mended, lambda: f"{what}; the log ends: {stage.end_of_log()}", timeout=seconds)
    except AssertionError as error:
        return [f"not drained: {error}"]
    return []
