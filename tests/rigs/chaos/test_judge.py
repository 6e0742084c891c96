"""The judge of the chaos run finds each planted problem in invented records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tests.rigs.chaos.judge import is_trimmed, judge
from tests.rigs.chaos.records import Fault, Interval, Line, Logged, Progress, Records, Told

SCOPE = "task=narrow"


def honest() -> Records:
    """Return honest records: three jobs under a cap of 2.

    One job succeeds, one fails for good, and one runs again after its lease expired.
    """
    return Records(
        told={job_id: Told("q", 80, 95) for job_id in "abc"},
        witness=[
            Line("start", "a", 1, 100, (SCOPE,)),
            Line("start", "b", 1, 110, (SCOPE,)),
            Line("end", "a", 1, 200, (SCOPE,)),
            Line("failed", "b", 1, 210, (SCOPE,)),
            Line("start", "c", 1, 220, (SCOPE,)),
            # Its worker was stopped, and comes back when the job has long run elsewhere.
            Line("start", "c", 2, 2_400, (SCOPE,)),
            Line("end", "c", 2, 2_500, (SCOPE,)),
            Line("end", "c", 1, 9_000, (SCOPE,)),
        ],
        events=[
            Logged("enqueued", "a", None, 90),
            Logged("enqueued", "b", None, 90),
            Logged("enqueued", "c", None, 90),
            Logged("claimed", "a", 1, 99),
            Logged("claimed", "b", 1, 99),
            Logged("succeeded", "a", 1, 201),
            Logged("died", "b", 1, 211),
            Logged("claimed", "c", 1, 211),
            Logged("lease_expired", "c", 1, 2_350, "ready"),
            Logged("claimed", "c", 2, 2_350),
            Logged("succeeded", "c", 2, 2_501),
            Logged("settlement_refused", "c", 1, 9_001),
        ],
        live={"b": "dead"},
        limits={SCOPE: 2},
    )


def flushed() -> Records:
    """Return records of a run in which Redis lost all its data at time 300.

    The log reports that events between the times 195 and 310 may be missing.
    """
    records = honest()
    records.faults = [Fault("flushall", 299, 300)]
    records.intervals = [Interval("q", 195, 310)]
    records.told["d"] = Told("q", 190, 250)
    return records


def three_at_once() -> Records:
    witness = [run("start", "d", 1, 150), run("end", "d", 1, 160)]
    events = [
        Logged("enqueued", "d", None, 90),
        Logged("claimed", "d", 1, 149),
        Logged("succeeded", "d", 1, 161),
    ]
    return but(honest(), told={"d": Told("q", 80, 95)}, witness=witness, events=events)


def run(what: str, job: str, claim: int, at_ms: float) -> Line:
    """Return a line that a job of a task with a cap wrote into the witness file."""
    return Line(what, job, claim, at_ms, (SCOPE,))


def but(
    records: Records,
    minus: Sequence[Line] = (),
    *,
    events_as: Callable[[Logged], Logged | None] = lambda event: event,
    witness: Sequence[Line] = (),
    events: Sequence[Logged] = (),
    told: Mapping[str, Told] | None = None,
    live: Mapping[str, str] | None = None,
    **fields: Any,
) -> Records:
    """Change the records, and return them. ``fields`` replace whole fields of the records.

    Lines are left out or added, and events are removed, changed or added.
    """
    records.witness = [line for line in records.witness if line not in minus] + [*witness]
    records.events = [new for event in records.events if (new := events_as(event))] + [*events]
    records.told.update(told or {})
    records.live.update(live or {})
    for name, value in fields.items():
        setattr(records, name, value)
    return records


def never_heard_of(job: str) -> Records:
    """Return records in which neither Redis nor SQL has the job, and no handler ran it."""
    records = but(honest(), events_as=lambda e: None if e.job == job else e)
    records.witness = [line for line in records.witness if line.job != job]
    records.live.pop(job, None)
    return records


def orphaned(which: Callable[[Logged], bool], *minus: Line, fault: Fault) -> Records:
    return but(honest(), minus, events_as=lambda e: e._replace(orphaned=which(e)), faults=[fault])


def stranger() -> Records:
    records = honest()
    del records.told["a"]
    return records


A_ENDS, B_FAILS = run("end", "a", 1, 200), run("failed", "b", 1, 210)
D = {"d": Told("q", 80, 95)}
D_ENQUEUED = Logged("enqueued", "d", None, 90)
D_RUNS = [Line("start", "d", 1, 200), Line("end", "d", 1, 250)]
D_AGAIN: dict[str, Any] = {
    "witness": [*D_RUNS, Line("start", "d", 1, 400), Line("end", "d", 1, 450)],
    "events": [
        Logged("enqueued", "d", None, 191),
        Logged("claimed", "d", 1, 399),
        Logged("succeeded", "d", 1, 451),
    ],
}
KILLED_UNDER_CAP = [
    run("start", "a", 2, 250),
    run("start", "b", 2, 2_420),
    run("failed", "b", 2, 2_480),
]
LOST_CLAIM = [Logged("claimed", "a", 2, 249, orphaned=True), Logged("claimed", "b", 2, 2_419)]
A_AND_B_AGAIN = [
    run(what, job, 2, at) for job in "ba" for what, at in (("start", 3_000), ("end", 3_100))
]
A_KILLED: dict[str, Any] = {
    "witness": [run("start", "a", 2, 260), run("end", "a", 2, 270)],
    "events": [Logged("claimed", "a", 2, 250), Logged("succeeded", "a", 2, 271)],
    "events_as": lambda e: (
        e._replace(event="lease_expired", at_ms=250, target="ready")
        if (e.job, e.event) == ("a", "succeeded")
        else e
    ),
}
SILENT = {"lost": 1, "unreported_loss": 1}
DOUBLE = {"duplicated_unexplained": 1}
STRANGE = {"unexpected": 1}
OVER = {"cap_violations": 1}
UNCLAIMED = {"unexpected": 2, "duplicated_unexplained": 1}
"""The further findings if jobs a and b run again without claims."""

CASES: dict[str, tuple[Records, dict[str, int]]] = {
    "honest": (honest(), {}),
    # Losses.
    **{f"neither Redis nor SQL has {job}": (never_heard_of(job), SILENT) for job in "abc"},
    "not acknowledged, and nowhere": (but(honest(), told={"d": Told("q", 80)}), {}),
    "not ended, and Redis lacks it": (but(honest(), told=D, events=[D_ENQUEUED]), SILENT),
    "not ended, and Redis has it": (but(honest(), told=D, events=[D_ENQUEUED], live={"d": "ready"}), {}),
    "a loss that the log reports": (
        orphaned(lambda e: e.job == "a" and e.event != "enqueued", A_ENDS, fault=Fault("aof_cut", 150, 160)),
        {"lost": 1},
    ),
    # A server that syncs always, and is killed, has everything when it comes back.
    "forgotten, and nothing took it": (
        orphaned(lambda e: e.event == "settlement_refused", fault=Fault("redis_kill", 150, 160)), STRANGE,
    ),
    "acknowledged within a reported interval": (flushed(), {"lost": 1}),
    "before the interval": (but(flushed(), told=D), SILENT),
    "before the interval, and the log calls it lost": (but(flushed(), told=D, named={"d"}), {"lost": 1}),
    "acknowledged before the interval began": (but(flushed(), told={"d": Told("q", 80, 190)}), SILENT),
    "sent when the interval was over": (but(flushed(), told={"d": Told("q", 320, 330)}), SILENT),
    "of another queue than the interval": (but(flushed(), told={"d": Told("other", 190, 250)}), SILENT),
    # Whenever Redis' history changes the log says that something may be missing. After a plain restart nothing is.
    "nothing was taken in the interval": (
        but(flushed(), faults=[Fault("redis_kill", 299, 300), Fault("flushall", 9_000, 9_001)]), SILENT,
    ),
    # The log alone would never know: the work was not done.
    "a success that no run came to its end for": (but(honest(), [A_ENDS]), SILENT),
    # Runs.
    "a claim that was lost is run again under its number": (but(flushed(), **D_AGAIN), {}),
    "the same, and nothing was lost": (but(flushed(), **D_AGAIN, intervals=[]), DOUBLE),
    # It ran to its end, so nothing of it is lost but what the log has of it.
    "a run in a claim that was lost": (but(flushed(), witness=D_RUNS), {}),
    "a run after what was lost": (but(flushed(), witness=[e._replace(at_ms=e.at_ms + 5_000) for e in D_RUNS]), STRANGE),
    "a second end of one claim": (but(honest(), witness=[run("end", "a", 1, 205)]), DOUBLE),
    "a second end, and the first claim was not taken away": (
        but(honest(), events_as=lambda e: e._replace(event="retried") if e.event == "lease_expired" else e), DOUBLE,
    ),
    "the claim of another job has expired": (
        but(honest(), witness=[run("start", "a", 2, 2_600), run("end", "a", 2, 2_700)],
            events=[Logged("claimed", "a", 2, 2_550)]),
        SILENT | DOUBLE,
    ),
    "an event of a job that was never attempted": (but(honest(), events=[Logged("enqueued", "x", None, 90)]), STRANGE),
    "a run of a job that was never attempted": (stranger(), STRANGE),
    "a live job that was never attempted": (but(honest(), live={"x": "ready"}), STRANGE),
    "a run without a claim in the log": (but(honest(), witness=[Line("start", "a", 7, 5_000)]), STRANGE),
    # Caps.
    "three at once under a cap of two": (three_at_once(), OVER),
    "three at once under a cap of three": (but(three_at_once(), limits={SCOPE: 3}), {}),
    # Its worker was killed, and b runs beside c.
    "a claim that was lost takes no place": (but(flushed(), witness=KILLED_UNDER_CAP, events=LOST_CLAIM), {"lost": 1}),
    "one that was not lost takes one": (
        but(flushed(), witness=KILLED_UNDER_CAP, events=[e._replace(orphaned=False) for e in LOST_CLAIM]),
        {"lost": 2, "unreported_loss": 1, **OVER},
    ),
    # A worker that is killed writes no last line; its places are taken until the lease is over: d beside a and b, and c
    # beside a, which is not over before 250; b's place is free at 211.
    "a run that was killed counts until its claim ends": (but(three_at_once(), [A_ENDS, B_FAILS], **A_KILLED), OVER),
    # The promise is about claims in force: c's first run goes on until 9,000, beside two others.
    "a run whose claim was taken away does not count": (but(honest(), witness=A_AND_B_AGAIN), UNCLAIMED),
    "one whose claim was not counts": (
        but(honest(), witness=A_AND_B_AGAIN, events_as=lambda e: None if e.event == "lease_expired" else e),
        {**UNCLAIMED, "duplicated_unexplained": 2, **OVER},
    ),
}  # fmt: skip
NAMES = ("lost", "unreported_loss", "unexpected", "duplicated_unexplained", "cap_violations")


@pytest.mark.parametrize("case", CASES)
def test_the_judge_of_chaos_runs_finds_exactly_the_planted_problem(case: str) -> None:
    records, expected = CASES[case]
    found = judge(records)

    assert {name: getattr(found, name) for name in NAMES if getattr(found, name)} == expected
    assert bool(found.problems) == (expected not in ({}, {"lost": 1}))


def test_the_judge_of_chaos_runs_counts_the_jobs_of_honest_records() -> None:
    found = judge(honest())

    assert (found.attempted, found.acknowledged, found.succeeded, found.dead) == (3, 3, 2, 1)
    assert (found.duplicated_explained, found.orphaned_reported) == (1, 0)
    assert "a" in judge(never_heard_of("a")).problems[0]
    assert judge(but(flushed(), named={"d"})).orphaned_reported == 1


def test_the_measured_recovery_of_a_killed_worker_ends_at_the_next_claims_of_its_jobs() -> None:
    records = honest()
    records.faults = [Fault("worker_kill", 2_000, 2_000, held=("c", "a"))]

    assert judge(records).held_s == [pytest.approx(0.35)]


def test_the_measured_recovery_from_a_fault_ends_when_a_job_that_was_claimed_after_it_has_ended() -> (
    None
):
    """A job that was claimed before the fault does not count: it may end during the fault, or be reported late."""
    records = honest()
    records.faults = [Fault("redis_stop", 100, 205), Fault("redis_stop", 3_000, 4_000)]
    recovery = judge(records).recoveries["redis_stop"]

    assert recovery.times == 2
    assert recovery.seconds == [pytest.approx(2.296)]


def test_the_measured_lag_of_sql_ends_when_sql_has_the_entries_that_the_outbox_had() -> None:
    records = honest()
    records.faults = [Fault("sql_lock", 50, 450)]
    records.progress = [
        Progress(0, "q", (1, 5), (1, 5)), Progress(100, "q", (1, 7), (1, 5)), Progress(200, "q", None, (1, 6)),
        Progress(500, "q", (1, 8), (1, 7)), Progress(700, "q", (2, 0), None), Progress(900, "q", (2, 0), (2, 0)),
    ]  # fmt: skip
    found = judge(records)

    assert found.lag_s == [0.0, 0.4, 0.4, pytest.approx(0.2), 0.0]
    assert found.recoveries["sql_lock"].seconds == [pytest.approx(0.05)]


def test_the_judge_accepts_only_a_gap_that_a_trim_of_the_outbox_explains() -> None:
    gap = Interval("q", 195, 310)

    assert is_trimmed(gap, [Fault("outbox_trim", 300, 301)])
    assert not is_trimmed(gap, [Fault("outbox_trim", 311, 312)])
    assert not is_trimmed(gap, [Fault("mirror_kill", 300, 301)])
