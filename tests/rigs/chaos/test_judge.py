"""The judge of the chaos run finds each planted lie, in records that are made up."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rigs.chaos.judge import is_trimmed, judge
from tests.rigs.chaos.records import Fault, Interval, Line, Logged, Progress, Records, Told

SCOPE = "task=narrow"


def honest() -> Records:
    """Three jobs under a cap of 2: one succeeds, one fails for good, one is run again after its lease expired."""
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


def wrong(records: Records) -> dict[str, int]:
    """What the judge objects to."""
    found = judge(records)
    names = ("lost", "unreported_loss", "unexpected", "duplicated_unexplained", "cap_violations")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


def test_honest_records_are_in_order() -> None:
    found = judge(honest())

    assert wrong(honest()) == {}
    assert found.problems == []
    assert (found.attempted, found.acknowledged, found.succeeded, found.dead) == (3, 3, 2, 1)
    assert found.duplicated_explained == 1
    assert found.orphaned_reported == 0


@pytest.mark.parametrize("job_id", ["a", "b", "c"])
def test_an_acknowledged_job_that_neither_redis_nor_sql_has_is_lost(job_id: str) -> None:
    records = honest()
    records.events = [event for event in records.events if event.job != job_id]
    records.witness = [line for line in records.witness if line.job != job_id]
    records.live.pop(job_id, None)

    assert wrong(records) == {"lost": 1, "unreported_loss": 1}
    assert job_id in judge(records).problems[0]


def test_a_job_that_was_not_acknowledged_may_be_nowhere() -> None:
    records = honest()
    records.told["d"] = Told("q", 80)

    assert wrong(records) == {}


def test_a_job_that_has_not_ended_is_lost_only_if_redis_lacks_it_too() -> None:
    records = honest()
    records.told["d"] = Told("q", 80, 95)
    records.events.append(Logged("enqueued", "d", None, 90))
    lacking = wrong(records)
    records.live["d"] = "ready"

    assert lacking == {"lost": 1, "unreported_loss": 1}
    assert wrong(records) == {}


def test_a_loss_that_the_log_reports_is_lost_and_not_silent() -> None:
    records = honest()
    records.events = [
        event._replace(orphaned=event.job == "a" and event.event != "enqueued")
        for event in records.events
    ]
    records.witness.remove(Line("end", "a", 1, 200, (SCOPE,)))
    records.faults = [Fault("aof_cut", 150, 160)]
    found = judge(records)

    assert (found.lost, found.unreported_loss, found.orphaned_reported) == (1, 0, 1)
    assert wrong(records) == {"lost": 1}


def test_nothing_may_be_forgotten_unless_something_took_it() -> None:
    """A server that syncs always, and is killed, has everything when it comes back."""
    records = honest()
    records.events = [
        event._replace(orphaned=event.event == "settlement_refused") for event in records.events
    ]
    records.faults = [Fault("redis_kill", 150, 160)]

    assert wrong(records) == {"unexpected": 1}


def flushed() -> Records:
    """Redis forgot everything at 300, and SQL had nothing behind 195: what happened between is known to nobody."""
    records = honest()
    records.faults = [Fault("flushall", 299, 300)]
    records.intervals = [Interval("q", 195, 310)]
    records.told["d"] = Told("q", 190, 250)
    return records


def test_what_was_acknowledged_within_a_reported_interval_is_lost_and_not_silent() -> None:
    assert wrong(flushed()) == {"lost": 1}


def test_a_job_that_the_log_calls_lost_is_not_silent() -> None:
    records = flushed()
    records.told["d"] = Told("q", 80, 95)
    silent = wrong(records)
    records.named = {"d"}

    assert silent == {"lost": 1, "unreported_loss": 1}
    assert wrong(records) == {"lost": 1}
    assert judge(records).orphaned_reported == 1


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (Told("q", 80, 190), "acknowledged before the interval began"),
        (Told("q", 320, 330), "sent when it was over"),
        (Told("other", 190, 250), "of another queue"),
    ],
)
def test_an_interval_excuses_nothing_outside_of_it(told: Told, why: str) -> None:
    records = flushed()
    records.told["d"] = told

    assert wrong(records) == {"lost": 1, "unreported_loss": 1}, why


def test_an_interval_excuses_nothing_unless_something_was_taken_in_it() -> None:
    """Whenever Redis' history changes the log says that something may be missing. After a plain restart nothing is."""
    records = flushed()
    records.faults = [Fault("redis_kill", 299, 300), Fault("flushall", 9_000, 9_001)]

    assert wrong(records) == {"lost": 1, "unreported_loss": 1}


def test_a_claim_that_was_lost_is_run_again_under_its_number() -> None:
    """Redis went back to before the claim; SQL never saw the first one."""
    records = flushed()
    records.witness += [
        Line("start", "d", 1, 200),
        Line("end", "d", 1, 250),
        Line("start", "d", 1, 400),
        Line("end", "d", 1, 450),
    ]
    records.events += [
        Logged("enqueued", "d", None, 191),
        Logged("claimed", "d", 1, 399),
        Logged("succeeded", "d", 1, 451),
    ]
    excused = wrong(records)
    records.intervals = []

    assert excused == {}
    assert wrong(records) == {"duplicated_unexplained": 1}


def test_a_run_in_a_claim_that_was_lost_is_no_stranger_and_one_after_it_is() -> None:
    records = flushed()
    records.witness += [Line("start", "d", 1, 200), Line("end", "d", 1, 250)]
    excused = wrong(records)
    records.witness = [line._replace(at_ms=line.at_ms + 5_000) for line in records.witness]

    # It ran to its end, so nothing of it is lost but what the log has of it.
    assert excused == {}
    assert wrong(records)["unexpected"] > 0


def test_a_claim_that_was_lost_takes_no_place_under_a_cap_any_more() -> None:
    records = flushed()
    records.witness += [
        Line("start", "a", 2, 250, (SCOPE,)),  # and its worker was killed
        Line("start", "b", 2, 2_420, (SCOPE,)),  # beside c
        Line("failed", "b", 2, 2_480, (SCOPE,)),
    ]
    records.events += [
        Logged("claimed", "a", 2, 249, orphaned=True),
        Logged("claimed", "b", 2, 2_419),
    ]
    excused = judge(records).cap_violations
    records.events = [event._replace(orphaned=False) for event in records.events]

    assert excused == 0
    assert judge(records).cap_violations > 0


def test_the_jobs_of_a_killed_worker_are_timed_from_the_kill_to_their_next_claim() -> None:
    records = honest()
    records.faults = [Fault("worker_kill", 2_000, 2_000, held=("c", "a"))]

    assert judge(records).held_s == [pytest.approx(0.35)]


def test_a_success_that_no_run_came_to_its_end_for_is_a_loss() -> None:
    """The log alone would never know: the work was not done."""
    records = honest()
    records.witness.remove(Line("end", "a", 1, 200, (SCOPE,)))

    assert wrong(records) == {"lost": 1, "unreported_loss": 1}


def test_a_second_end_of_one_claim_is_not_explained() -> None:
    records = honest()
    records.witness.append(Line("end", "a", 1, 205, (SCOPE,)))

    assert wrong(records) == {"duplicated_unexplained": 1}


def test_a_second_end_is_not_explained_unless_the_first_claim_was_taken_away() -> None:
    records = honest()
    records.events = [
        event._replace(event="retried", target=None) if event.event == "lease_expired" else event
        for event in records.events
    ]

    assert wrong(records)["duplicated_unexplained"] == 1


def test_a_claim_of_another_job_that_expired_explains_nothing() -> None:
    records = honest()
    records.witness += [
        Line("start", "a", 2, 2_600, (SCOPE,)),
        Line("end", "a", 2, 2_700, (SCOPE,)),
    ]
    records.events.append(Logged("claimed", "a", 2, 2_550))

    assert wrong(records)["duplicated_unexplained"] == 1


@pytest.mark.parametrize("what", ["event", "line", "live"])
def test_a_job_that_was_never_attempted_is_unexpected(what: str) -> None:
    records = honest()
    added: dict[str, Any] = {
        "event": lambda: records.events.append(Logged("enqueued", "x", None, 90)),
        "line": lambda: records.told.pop("a"),
        "live": lambda: records.live.update(x="ready"),
    }
    added[what]()

    assert wrong(records) == {"unexpected": 1}


def test_a_run_without_a_claim_in_the_log_is_unexpected() -> None:
    records = honest()
    records.witness.append(Line("start", "a", 7, 5_000))

    assert wrong(records) == {"unexpected": 1}


def three_at_once() -> Records:
    records = honest()
    records.told["d"] = Told("q", 80, 95)
    records.witness += [
        Line("start", "d", 1, 150, (SCOPE,)),
        Line("end", "d", 1, 160, (SCOPE,)),
    ]
    records.events += [
        Logged("enqueued", "d", None, 90),
        Logged("claimed", "d", 1, 149),
        Logged("succeeded", "d", 1, 161),
    ]
    return records


def test_three_runs_at_once_pass_a_cap_of_two() -> None:
    assert wrong(three_at_once()) == {"cap_violations": 1}


def test_three_runs_at_once_keep_a_cap_of_three() -> None:
    records = three_at_once()
    records.limits = {SCOPE: 3}

    assert wrong(records) == {}


def test_a_run_that_was_killed_counts_until_its_claim_ends() -> None:
    """A worker that is killed writes no last line; its places are taken until the lease is over."""
    records = three_at_once()
    records.witness.remove(Line("end", "a", 1, 200, (SCOPE,)))
    records.witness.remove(Line("failed", "b", 1, 210, (SCOPE,)))
    records.witness += [Line("start", "a", 2, 260, (SCOPE,)), Line("end", "a", 2, 270, (SCOPE,))]
    records.events = [
        event._replace(event="lease_expired", at_ms=250, target="ready")
        if (event.job, event.event) == ("a", "succeeded")
        else event
        for event in records.events
    ]
    records.events += [Logged("claimed", "a", 2, 250), Logged("succeeded", "a", 2, 271)]

    # d beside a and b, and c beside a, which is not over before 250; b's place is free at 211.
    assert wrong(records) == {"cap_violations": 1}


def test_a_run_whose_claim_was_taken_away_does_not_count() -> None:
    """The promise is about claims in force: c's first run goes on until 9,000, beside two others."""
    records = honest()
    records.witness += [
        Line("start", "b", 2, 3_000, (SCOPE,)),
        Line("end", "b", 2, 3_100, (SCOPE,)),
        Line("start", "a", 2, 3_000, (SCOPE,)),
        Line("end", "a", 2, 3_100, (SCOPE,)),
    ]
    cap_violations = judge(records).cap_violations
    records.events = [event for event in records.events if event.event != "lease_expired"]

    assert cap_violations == 0
    assert judge(records).cap_violations > 0


def test_recovery_is_when_a_job_that_was_claimed_after_the_fault_has_ended() -> None:
    """One that was claimed before may end in the middle of it, or be reported late."""
    records = honest()
    records.faults = [Fault("redis_stop", 100, 205), Fault("redis_stop", 3_000, 4_000)]
    recovery = judge(records).recoveries["redis_stop"]

    assert recovery.times == 2
    assert recovery.seconds == [pytest.approx(2.296)]


def test_lag_is_from_a_look_at_the_outbox_until_sql_has_what_was_there() -> None:
    records = honest()
    records.faults = [Fault("sql_lock", 50, 450)]
    records.progress = [
        Progress(0, "q", (1, 5), (1, 5)),
        Progress(100, "q", (1, 7), (1, 5)),
        Progress(200, "q", None, (1, 6)),
        Progress(500, "q", (1, 8), (1, 7)),
        Progress(700, "q", (2, 0), None),
        Progress(900, "q", (2, 0), (2, 0)),
    ]
    found = judge(records)

    assert found.lag_s == [0.0, 0.4, 0.4, pytest.approx(0.2), 0.0]
    assert found.recoveries["sql_lock"].seconds == [pytest.approx(0.05)]


def test_only_a_trim_within_a_gap_explains_it() -> None:
    gap = Interval("q", 195, 310)

    assert is_trimmed(gap, [Fault("outbox_trim", 300, 301)])
    assert not is_trimmed(gap, [Fault("outbox_trim", 311, 312)])
    assert not is_trimmed(gap, [Fault("mirror_kill", 300, 301)])
