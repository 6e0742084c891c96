"""The replay of one queue's log, without SQL. The replay accepts true logs, and reports every lie."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.model.events import OutboxId
from rq_core.model.unique_names import digest_of
from sql_audit.proof.epoch_starts import EpochStart
from sql_audit.proof.findings import Violation
from sql_audit.proof.replay.replay import Replay
from sql_audit.store.schema.tables import EVENT_COLUMNS
from sql_audit.store.storable_text import to_json
from tests.kit.story import MemoryWriter, Story


@pytest.fixture
def log() -> MemoryWriter:
    return MemoryWriter()


def replay(log: MemoryWriter, **options: Any) -> Replay:
    found = Replay(log.queue, **options)
    found.feed(log.rows)
    found.finish()
    return found


def the_violation(log: MemoryWriter, **options: Any) -> Violation:
    found = replay(log, **options)
    assert len(found.violations) == 1, found.violations
    return found.violations[0]


Told = tuple[Any, ...] | Callable[[MemoryWriter], Any]
"""An entry: its event, and an array for each job. In the array, F is replaced by the fence of the last claim.
Alternatively, a function that is called with the log."""


def tell(log: MemoryWriter, *told: Told) -> None:
    fence = ""
    for each in told:
        if callable(each):
            each(log)
            continue
        kind, *arrays = each
        number = log.jobs(kind, *([fence if v == "F" else v for v in array] for array in arrays))
        fence = number if kind == "claimed" else fence


def jobs(*ids: str, lane: str | None = None, most: int = 3) -> Told:
    return ("enqueued", *([i, 1, None, "send", "normal", most, 3, "d", lane] for i in ids))


def enqueue(log: MemoryWriter, *ids: str, lane: str | None = None) -> None:
    tell(log, jobs(*ids, lane=lane))


def of_queue(kind: str, *values: Any) -> Told:
    """Return a function that writes an entry about the queue to a log."""
    return lambda log: log.queue_event(kind, *values)


def at(ms: int) -> Told:
    """Return a function that sets the clock of a log to this time (in ms)."""
    return lambda log: setattr(log, "now_ms", ms)


def new_epoch(log: MemoryWriter) -> None:
    log.begin(log.epoch + 1_000, "replid_changed", f"{log.epoch}-{log.seq}")


@pytest.mark.parametrize("seed", range(25))
def test_replay_finds_no_violation_in_the_log_of_a_correct_queue(
    log: MemoryWriter, seed: int
) -> None:
    Story(log, seed).run(400)

    found = replay(log)

    assert (found.violations, found.notes) == ([], [])
    assert found.events == len(log.rows)


@pytest.mark.parametrize("seed", range(10))
def test_the_memory_of_replay_is_bounded_by_the_live_jobs(log: MemoryWriter, seed: int) -> None:
    story = Story(log, seed)
    story.run(400)

    found = replay(log)

    alive = {*story.waiting, *story.scheduled, *story.dead, *story.running}
    assert set(found.jobs) == alive
    assert found.holders.total == len(story.running)
    assert sum(found.holders.keys.values()) == len(story.running)


@pytest.mark.parametrize("seed", range(5))
def test_replay_reports_a_claim_beyond_its_cap(log: MemoryWriter, seed: int) -> None:
    story = Story(log, seed, slack=1)
    story.enqueue(40)
    story.run(100)

    found = replay(log)

    assert {v.invariant for v in found.violations} == {"I3"}
    first = found.violations[0]
    assert first.event == "claimed"
    assert "hold" in first.says


# Deadlines (I19).

UNTIL = 2_000_000_000_000


def enqueue_until(log: MemoryWriter) -> None:
    log.jobs("enqueued", ["a", 1, None, "send", "normal", 3, 3, "d", None, None, UNTIL])


@pytest.mark.parametrize(("late_ms", "breaches"), [(-1, []), (0, ["I19"]), (7, ["I19"])])
def test_replay_reports_a_claim_at_or_after_the_deadline(
    log: MemoryWriter, late_ms: int, breaches: list[str]
) -> None:
    enqueue_until(log)
    log.now_ms = UNTIL + late_ms - 1
    log.jobs("claimed", ["a", 1])

    assert breaches == [v.invariant for v in replay(log).violations]


@pytest.mark.parametrize("dead", [None, 1])
def test_replay_accepts_an_expired_job_whether_it_was_removed_or_became_dead(
    log: MemoryWriter, dead: int | None
) -> None:
    """Checks the event `expired` with and without the field that says whether the job is dead."""
    enqueue_until(log)
    if dead:
        fence = log.jobs("claimed", ["a", 1])
        log.jobs("retried", ["a", fence, None, 1, None])
    log.now_ms = UNTIL
    log.jobs("expired", ["a", dead])

    found = replay(log)
    assert [] == found.violations
    assert ["dead"] * (dead or 0) == [job.state for job in found.jobs.values()]


# Events that contradict themselves, or what the log says of their job before.

SPEC = '{"task":"send","args":{"to":"a@b.c"},"timeout_ms":5}'
ARGUMENTS = digest_of('{"to":"a@b.c"},"timeout_ms":5')


def waiting(job_id: str, due_ms: int | None = None, spec: str | None = None) -> list[Any]:
    seq = 1 if due_ms is None else None
    return [job_id, seq, due_ms, "send", "normal", 3, 3, ARGUMENTS, None, spec]


def promoted(log: MemoryWriter, early_ms: int) -> None:
    log.jobs("enqueued", waiting("a", UNTIL))
    log.now_ms = UNTIL - early_ms - 1
    log.jobs("promoted", ["a", 1])


def expired(log: MemoryWriter, early_ms: int | None, dead: int | None = None) -> None:
    log.jobs("enqueued", [*waiting("a"), None if early_ms is None else UNTIL])
    log.now_ms = UNTIL - (early_ms or 0) - 1
    log.jobs("expired", ["a", dead])


def replaced(log: MemoryWriter, *kinds: str, claims: int = 0) -> None:
    """Write the entries of a job a that job b replaces, and then entries of these kinds. The kind "another" enqueues a
    job d."""
    log.jobs("enqueued", waiting("a"))
    for claim in range(claims):
        fence = log.jobs("claimed", ["a", claim + 1])
        log.jobs("rolled_back", ["a", fence, None, "late", 0])
    log.jobs("replaced", ["a", "b"])
    for kind in kinds:
        if kind == "discarded":
            log.jobs(kind, ["c", "send", None, "queue", 1])
        elif kind == "epoch_started":
            log.begin(log.epoch + 1_000, "replid_changed", f"{log.epoch}-{log.seq}")
        else:
            log.jobs("enqueued", waiting("b" if kind == "enqueued" else "d"))
    log.queue_event("resumed")


def settled(log: MemoryWriter, kind: str, *facts: Any, worker: str = "w-1") -> None:
    """Write the entries of a job that is enqueued and claimed, and an event of type ``kind`` about the claim."""
    log.jobs("enqueued", waiting("a"))
    fence = log.jobs("claimed", ["a", 1])
    log.jobs(kind, ["a", fence, *facts], by=worker)


def paused(log: MemoryWriter, *kinds: str) -> None:
    log.jobs("enqueued", waiting("a"))
    for kind in kinds:
        log.queue_event(kind)
    log.jobs("claimed", ["a", 1])


def two_of_an_entry(log: MemoryWriter, **other: Any) -> None:
    """Write an entry with two rows. ``other`` replaces values of the second row."""
    log.jobs("enqueued", waiting("a"), waiting("b"))
    row = dict(zip(EVENT_COLUMNS, log.rows[-1], strict=True)) | other
    log.rows[-1] = tuple(row[name] for name in EVENT_COLUMNS)


def beginning(kind: str, *facts: Any) -> Callable[[MemoryWriter], None]:
    return lambda log: log.jobs(kind, ["a", *facts]) and None


def restored(seq: int | None, due_ms: int | None, target: str) -> Callable[[MemoryWriter], None]:
    return beginning("restored", seq, due_ms, target, "send", "normal", 3, 3, "d", 1, 0, 0, 0, 0)


def told_of(log: MemoryWriter, kind: str, **other: Any) -> None:
    """Write the entries of a job from its enqueue to its success. ``other`` replaces values in the event of type
    ``kind``."""
    log.queue_event("policy_changed", "lease_ms", "30000", "5000")
    settled(log, "succeeded")
    [at] = [n for n, row in enumerate(log.rows) if row[4] == kind]
    row = dict(zip(EVENT_COLUMNS, log.rows[at], strict=True))
    facts = json.loads(row["detail"] or "{}")
    for name, value in other.items():
        if name in row:
            row[name] = value(row["detail"]) if callable(value) else value
        else:
            facts = {**facts, name: value}
            facts = {each: facts[each] for each in facts if facts[each] is not None}
            row["detail"] = to_json(facts)
    log.rows[at] = tuple(row[name] for name in EVENT_COLUMNS)


def cancelled(log: MemoryWriter, facts: list[Any]) -> None:
    enqueue(log, "a")
    log.jobs("cancelled", ["a", *facts])


def discarded(log: MemoryWriter, scope: str, cap: int) -> None:
    log.queue_event("cap_changed", "tenant", None, "2", 1)
    log.jobs("discarded", ["a", "send", "2+tenant=acme", scope, cap])


CONTRADICTIONS: dict[str, tuple[Callable[[MemoryWriter], Any], str | None]] = {
    "promoted in time": (lambda log: promoted(log, 0), None),
    "promoted early": (lambda log: promoted(log, 7), "is ready 7 ms before it is due"),
    "expired in time": (lambda log: expired(log, 0), None),
    "expired early": (lambda log: expired(log, 7), "expires 7 ms before its deadline"),
    "expired without a deadline": (lambda log: expired(log, None), "expires, and has no deadline"),
    "expired to death": (lambda log: expired(log, 0, 1), "is dead after 0 failures and 0 losses"),
    "enqueued with its JSON": (lambda log: log.jobs("enqueued", waiting("a", None, SPEC)), None),
    "other arguments": (lambda log: log.jobs("enqueued", waiting("a", None, SPEC.replace("a@", "e@"))),
        "the digest of its arguments and its timeout"),
    "another task": (lambda log: log.jobs("enqueued", waiting("a", None, SPEC.replace("send", "pay"))),
        "its JSON is of task 'pay'"),
    "JSON of nothing": (lambda log: log.jobs("enqueued", waiting("a", None, "{}")), "its JSON cannot be read"),
    "due in the past": (lambda log: log.jobs("enqueued", waiting("a", log.now_ms - 6)),
        "waits for a time that was over 7 ms before"),
    "in line and due": (beginning("enqueued", 1, UNTIL, "send", "normal", 3, 3, "d"),
        "is scheduled, with place 1 in line and due time"),
    "restored": (restored(1, None, "ready"), None),
    "restored as scheduled": (restored(None, None, "scheduled"), "with place None in line"),
    "replaced": (lambda log: replaced(log, "discarded", "enqueued"), None),
    "replaced as Redis fails": (lambda log: replaced(log, "epoch_started"), None),
    "replaced by none": (lambda log: replaced(log), "replaced by b, which did not begin"),
    "replaced by a later job": (lambda log: replaced(log, "another", "enqueued"), "replaced by b, which did not begin"),
    "replaced after a claim": (lambda log: replaced(log, "enqueued", claims=1), "is replaced after 1 claim"),
    "retried for a time in the past": (lambda log: settled(log, "retried", 7, 1, None),
        "waits for a time that was over"),
    "dies of no failure": (lambda log: settled(log, "died", "final", 0, None), "dies of a failure that is not counted"),
    "dies unknown": (lambda log: settled(log, "died", "unknown_task", 0, None), None),
    "given back as unknown": (lambda log: settled(log, "rolled_back", UNTIL, "unknown_task", 1), None),
    "given back as unknown twice": (lambda log: settled(log, "rolled_back", UNTIL, "unknown_task", 2),
        "was given back as unknown 2 times, by the log 1"),
    "refused to another worker": (lambda log: settled(log, "settlement_refused", "complete", "stale", worker="w-2"),
        None),
    "refused to its worker": (lambda log: settled(log, "settlement_refused", "complete", "stale"), "which is in force"),
    "claimed after a pause": (lambda log: paused(log, "paused", "resumed"), None),
    "claimed in a pause": (lambda log: paused(log, "paused"), "while the queue is paused"),
    "other attempts": (lambda log: log.jobs("enqueued", waiting("a", None, SPEC.replace("{", '{"attempts":5,', 1))),
        "its JSON allows 5 attempts, and the job has 3"),
    "attempts that its task decides": (
        lambda log: log.jobs("enqueued", waiting("a", None, SPEC.replace("{", '{"attempts":0,', 1))),
        "its JSON allows the task's attempts, and the job has 3"),
    "losses that its task decides": (
        lambda log: log.jobs("enqueued", waiting("a", None, SPEC.replace("{", '{"losses":0,', 1))),
        "differ in whether the task decides"),
    "the lane of its priority": (lambda log: enqueue(log, "a", lane="2+tenant=acme"), None),
    "the lane of another priority": (lambda log: enqueue(log, "a", lane="0+tenant=acme"),
        "is of priority normal, and in lane 0+tenant=acme"),
    "cancelled before its claim": (lambda log: cancelled(log, []), None),
    "cancelled with a claim that never was": (lambda log: cancelled(log, ["7-1"]),
        "ends claim 7-1 of a job that was ready"),
    "discarded": (lambda log: discarded(log, "tenant=acme", 2), None),
    "discarded under another cap": (lambda log: discarded(log, "tenant=acme", 1),
        "finds tenant=acme ≤ 1 full, stored is 2"),
    "discarded for what is not its scope": (lambda log: discarded(log, "tenant=wayne", 2),
        "is no scope of lane 2+tenant=acme"),
    "one entry": (two_of_an_entry, None),
    "a field too many": (lambda log: told_of(log, "succeeded", error="none"),
        "says error, which is no field of such an event"),
    "a field of a claim too many": (lambda log: told_of(log, "claimed", reason="asked for"),
        "says reason, which is no field"),
    "a field too few": (lambda log: told_of(log, "enqueued", max_attempts=None), "does not say max_attempts"),
    "a field twice": (lambda log: told_of(log, "succeeded", detail=lambda was: f'{{"fence":"7-1",{was[1:]}'),
        "not as the mirror writes it"),
    "blanks in its JSON": (lambda log: told_of(log, "succeeded", detail=lambda was: was.replace(":", ": ")),
        "not as the mirror writes it"),
    "the task of another": (lambda log: told_of(log, "succeeded", task="pay"),
        "is said to be of task pay, and the job's is send"),
    "claimed for another task": (lambda log: told_of(log, "claimed", task="pay"),
        "is said to be of task pay, and the job's is send"),
    "the end of another claim": (lambda log: told_of(log, "succeeded", claim=7),
        "is said to be of claim 7, in force is 1"),
    "enqueued with a claim": (lambda log: told_of(log, "enqueued", claim=7),
        "is said to be of claim 7, and it says None"),
    "a setting of a job": (lambda log: told_of(log, "policy_changed", job_id="a"),
        "is about the queue, and names job a"),
    "two times in an entry": (lambda log: two_of_an_entry(log, at_ms=7), "in one entry with"),
    "two actors in an entry": (lambda log: two_of_an_entry(log, worker="x"), "in one entry with"),
}  # fmt: skip
"""For each contradiction, a function that writes the log, and the words of the violation, or None if there is no
violation."""


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_replay_reports_an_event_that_contradicts_earlier_events(
    log: MemoryWriter, name: str
) -> None:
    happens, says = CONTRADICTIONS[name]
    happens(log)

    found = [violation.says for violation in replay(log).violations]

    assert len(found) == (says is not None), found
    assert (says or "") in "".join(found)


# Names (I13).


NAME = "send/tenant=acme"


def named(job_id: str) -> list[Any]:
    return [job_id, 1, None, "send", "normal", 3, 3, "d", None, None, None, NAME]


def standing(job_id: str, stands: str) -> list[Any]:
    return [*named(job_id), None, None, stands]


def test_replay_reports_a_job_that_takes_a_unique_name_within_the_throttle_window_of_another_job(
    log: MemoryWriter,
) -> None:
    """Checks a job that has ended while its window is still open."""
    log.jobs("enqueued", standing("a", f"until:{log.now_ms + 60_000}"))
    fence = log.jobs("claimed", ["a", 1])
    log.jobs("succeeded", ["a", fence])
    log.now_ms += 30_000
    log.jobs("enqueued", standing("b", f"until:{log.now_ms + 60_000}"))

    found = the_violation(log)
    assert (found.invariant, found.job_id) == ("I13", "b")
    assert "job a holds it" in found.says


def test_replay_forgets_throttle_windows_that_have_expired(log: MemoryWriter) -> None:
    for n in range(100):
        name = f"send/user={n}"
        log.jobs("enqueued", [*named(f"j-{n}")[:-1], name, None, None, f"until:{log.now_ms + 10}"])
        log.now_ms += 10

    assert 1 == len(replay(log).names)


# Values of kept results (I14).


def end_kept(log: MemoryWriter, *told: Any, keep_ms: int | None = 5) -> Replay:
    """Return the replay of a job that succeeds. The last event has these fields about the result."""
    log.jobs("enqueued", ["a", 1, None, "send", "normal", 3, 3, "d", *[None] * 7, keep_ms])
    fence = log.jobs("claimed", ["a", 1])
    log.jobs("succeeded", ["a", fence, *told])
    return replay(log)


@pytest.mark.parametrize("told", [(digest_of("[1]"), "[2]"), (None, "[1]")])
def test_replay_reports_a_result_with_a_wrong_digest(
    log: MemoryWriter, told: tuple[str | None, str]
) -> None:
    (found,) = end_kept(log, *told).violations

    assert ("I14", "a") == (found.invariant, found.job_id)


# Ids that are remembered (I14).

ONCE = 1_795_311_906_504


def remembered(job_id: str = "a", once: int | None = ONCE) -> list[Any]:
    return [job_id, 1, None, "send", "normal", 3, 3, "d", None, None, None, None, once, "70c5"]


def end_remembered(log: MemoryWriter, end: str) -> None:
    """Write the entries of a claimed job with a remembered id. The last event has the type ``end``."""
    log.now_ms = ONCE - 1_000
    log.jobs("enqueued", remembered())
    fence = log.jobs("claimed", ["a", 1])
    if end == "succeeded":
        log.jobs("succeeded", ["a", fence])
    elif end == "pruned":
        log.jobs("died", ["a", fence, "final", 1, None])
        log.jobs("pruned", ["a"])
    else:
        log.jobs("retried", ["a", fence, None, 1, None])
        facts = {"cancelled": [None], "removed": ["succeeded"]}.get(end, [])
        log.jobs(end, ["a", *facts])


ENDS = ("succeeded", "pruned", "cancelled", "removed")


@pytest.mark.parametrize("end", ENDS)
def test_replay_reports_a_new_job_with_a_remembered_id(log: MemoryWriter, end: str) -> None:
    end_remembered(log, end)
    log.jobs("enqueued", remembered())
    found = replay(log).violations

    if end == "removed":
        assert [] == found
    else:
        assert [("I14", "enqueued", "a")] == [(v.invariant, v.event, v.job_id) for v in found]
        assert found[0].says.endswith("ms before its id is forgotten")


# Caps (I3).

TENANT = [["tenant=acme", 1]]


def test_replay_reports_a_second_running_job_under_a_cap_of_1(
    log: MemoryWriter,
) -> None:
    log.queue_event("cap_changed", "tenant", None, "1", 1)
    enqueue(log, "a", "b")
    log.jobs("claimed", ["a", 1, TENANT])
    assert replay(log).violations == []
    log.jobs("claimed", ["b", 1, TENANT])

    assert the_violation(log).says == "2 hold tenant=acme, its cap is 1"


@pytest.mark.parametrize("seed", range(5))
def test_replay_accepts_the_burst_of_a_rate_and_then_one_claim_per_interval(seed: int) -> None:
    log = MemoryWriter()
    log.queue_event("cap_changed", "tenant@1s", None, "10/1000ms/3", 1)
    enqueue(log, *"abcdef", lane="2+tenant@1s=acme")
    rate = [["tenant@1s=acme", 10, 1000, 3]]
    begin = log.now_ms
    for n, job_id in enumerate("abc"):
        log.jobs("claimed", [job_id, 1, rate])
        assert log.now_ms == begin + n + 1
    log.now_ms = begin + 100 + seed
    log.jobs("claimed", ["d", 1, rate])
    assert replay(log).violations == []
    log.now_ms = begin + 190
    log.jobs("claimed", ["e", 1, rate])

    found = the_violation(log)

    assert found.says == "claimed 10 ms too early for tenant@1s=acme: 10 per 1000 ms, 3 at once"
    assert found.job_id == "e"


def test_replay_accepts_a_claim_under_a_rate_after_the_clock_was_set_back(
    log: MemoryWriter,
) -> None:
    """Checks that the rate admits the next job by the new clock, as Redis does."""
    log.queue_event("cap_changed", "tenant@1s", None, "10/1000ms/3", 1)
    enqueue(log, *"abcde", lane="2+tenant@1s=acme")
    rate = [["tenant@1s=acme", 10, 1000, 3]]
    for job_id in "abc":
        log.jobs("claimed", [job_id, 1, rate])
    log.now_ms -= 20_000
    log.jobs("claimed", ["d", 1, rate])
    log.now_ms += 20_000
    log.jobs("claimed", ["e", 1, rate])

    assert [] == replay(log).violations


@pytest.mark.slow
def test_replay_forgets_rates_that_are_no_longer_exhausted(log: MemoryWriter) -> None:
    for n in range(5_000):
        enqueue(log, f"j{n}")
        log.jobs("claimed", [f"j{n}", 1, [[f"ip@1s={n}", 10, 100, 1]]])

    found = Replay("mail")
    found.feed(log.rows)

    assert len(found.holders._rates) < 2_000


# Claims and transitions (I2, I4, I6, I9).


@pytest.mark.parametrize(
    "end",
    [("succeeded",), ("retried", None, 1), ("died", "final", 1), ("rolled_back", None, "late")],
    ids=lambda end: end[0],
)
def test_replay_reports_a_settlement_by_another_worker(
    log: MemoryWriter, end: tuple[Any, ...]
) -> None:
    """Checks worker w-2, which settles a claim of worker w-1 with the claim's fence."""
    enqueue(log, "a")
    fence = log.jobs("claimed", ["a", 1], by="w-1")
    log.jobs(end[0], ["a", fence, *end[1:]], by="w-2")

    found = the_violation(log)

    assert found.invariant == "I9"
    assert found.says == "ends a claim of w-2, in force is that of w-1"


# Edits.

DUE = 1_795_225_800_000
BEFORE = [DUE, "normal", None]
"""The old values that the event of an edit has for the job from the function ``delayed``: the due time, the priority
and the deadline."""
LANE = "2+task=send+tenant=acme"


def delayed(log: MemoryWriter, lane: str | None = LANE, expires: int | None = None) -> None:
    job = ["a", None, DUE, "send", "normal", 3, 3, "d", lane, None, expires]
    log.jobs("enqueued", job)


@pytest.mark.parametrize(
    "edited, invariant, says",
    [
        (["a", 1, None, "normal", None, None, DUE - 1, "normal", None], "I6", "due time was"),
        (["a", 1, None, "normal", None, None, DUE, "low", None], "I6", "priority was low, and it"),
        (["a", 1, None, "normal", None, None, DUE, "normal", 5], "I6", "deadline was 5, and it"),
        (["a", None, DUE, "normal", None, None, *BEFORE], "I6", "changes nothing"),
        (["a", None, DUE, "high", None, None, *BEFORE], "I6", f"leaves the job in lane {LANE}"),
        (["a", 1, None, "normal", "1+task=send+tenant=acme", None, *BEFORE], "I6", "without another priority"),
        (["a", 1, None, "high", LANE, None, *BEFORE], "I6", "which has another priority"),
        (["a", 1, None, "high", "1+tenant=wayne", None, *BEFORE], "I6", "has other scopes"),
        (["a", None, DUE + 1, "normal", None, DUE, *BEFORE], "I19", "1 ms after its deadline"),
        (["a", 1, None, "normal", None, 1_000, *BEFORE], "I19", "after its deadline"),
    ],
)  # fmt: skip
def test_replay_reports_an_edit_event_with_a_false_field(
    log: MemoryWriter, edited: list[Any], invariant: str, says: str
) -> None:
    delayed(log)
    log.jobs("edited", edited)

    found = replay(log).violations

    assert [invariant] == [each.invariant for each in found], found
    assert says in found[0].says


def test_replay_accepts_an_edit_of_a_job_whose_earlier_events_are_missing(
    log: MemoryWriter,
) -> None:
    log.jobs("edited", ["a", 1, None, "high", "1+tenant=acme", None, DUE, "low", 5])
    log.jobs("edited", ["a", 1, None, "low", "3+tenant=acme", None, None, "high", None])
    del log.rows[0]

    assert {"I5"} == {each.invariant for each in replay(log).violations}


def test_replay_accepts_a_lease_expiry_that_is_noticed_by_another_worker(log: MemoryWriter) -> None:
    enqueue(log, "a")
    fence = log.jobs("claimed", ["a", 1], by="w-1")
    log.jobs("lease_expired", ["a", fence, "w-1", 1, "ready"], by="w-2")
    fence = log.jobs("claimed", ["a", 2], by="w-2")
    log.jobs("cancel_requested", ["a", fence], by="ada")
    log.jobs("cancelled", ["a", fence], by="w-3")

    assert replay(log).violations == []


# Of each invariant: what may be, and what may not.

START = 1_795_225_746_504
"""The time at which the log begins, in Unix ms."""
CLAIMED, SUCCEEDED = ("claimed", ["a", 1]), ("succeeded", ["a", "F"])
DIED, REQUEUED = ("died", ["a", "F", "final", 1, None]), ("requeued", ["a", 2])
RETRIED = ("retried", ["a", "F", None, 1, None])
TENANT_1 = of_queue("cap_changed", "tenant", None, "1", 1)
ENDS_OF_CLAIMS: dict[str, list[Told]] = {
    "succeeded": [SUCCEEDED], "retried": [RETRIED], "died": [DIED],
    "rolled back": [("rolled_back", ["a", "F", None, "stopping"])],
    "lost": [("lease_expired", ["a", "F", "w-1", 1, "ready"])],
    "cancelled": [("cancel_requested", ["a", "F"]), ("cancelled", ["a", "F"])],
}  # fmt: skip


def name(job_id: str, stands: str | None = None, expires: int | None = None) -> Told:
    job = [*named(job_id)[:10], expires, NAME]
    return ("enqueued", job if stands is None else [*job, None, None, stands])


def until(job_id: str, ms: int) -> Told:
    return name(job_id, f"until:{START + ms}")


def restored_named(claims: int) -> Told:
    counts = [claims, 0, 0, 0, None, None, None]
    return (
        "restored",
        [
            "a", 2, None, "ready", "send", "normal", 3, 3, "d", None, *counts, NAME, None, None, "claim:9",
        ],
    )  # fmt: skip


def value_told(*told: Any, keep_ms: int | None = 5) -> list[Told]:
    job = ["a", 1, None, "send", "normal", 3, 3, "d", *[None] * 7, keep_ms]
    return [("enqueued", job), CLAIMED, ("succeeded", ["a", "F", *told])]


def once(once_ms: int | None = ONCE, expires: int | None = None) -> Told:
    job = remembered(once=once_ms)
    job[10] = expires
    return ("enqueued", job)


REMEMBERED = [at(ONCE - 1_000), once(), CLAIMED, SUCCEEDED]
IN_THE_MIDDLE = [
    lambda log: log.begin(log.epoch + 1, "attached", f"{log.epoch}-0"),
    of_queue("cap_changed", "tenant", "4", "5", 9), of_queue("policy_changed", "baseline", "pending", "done"),
    jobs("a", lane="2+tenant=acme"), ("claimed", ["a", 1, [["tenant=acme", 3]]]),
]  # fmt: skip
SLOW = [["tenant@1s=acme", 1, 1000, 1]]
GIVEN_BACK = [
    TENANT_1, of_queue("cap_changed", "tenant=acme", None, "5", 1),
    of_queue("cap_changed", "tenant=acme", "5", None, 2), jobs("a", "b", lane="2+tenant=acme"),
    ("claimed", ["a", 1, [["tenant=acme", 1]]]), SUCCEEDED,
    # It begins anew when somebody sets it again.
    of_queue("cap_changed", "tenant=acme", None, "7", 1),
]  # fmt: skip
LOWERED = [
    of_queue("cap_changed", "queue", None, "3", 1), jobs("a", "b", "c"),
    ("claimed", *([i, 1, [["queue", 3]]] for i in "ab")), of_queue("cap_changed", "queue", "3", "1", 2),
]  # fmt: skip
EDITED_HIGH = ("edited", ["a", 1, None, "high", None, None, None, "normal", None])

HOLDS: dict[str, list[Told]] = {
    "a requeued job has no deadline to keep": [
        lambda log: enqueue_until(log), CLAIMED, DIED, at(UNTIL), REQUEUED, ("claimed", ["a", 2]),
    ],
    "a name of a job that has succeeded": [name("a"), CLAIMED, SUCCEEDED, name("b")],
    "a name of a job that has died": [name("a"), CLAIMED, DIED, name("b")],
    "a name of a job that was cancelled": [name("a"), ("cancelled", ["a"]), name("b")],
    "a name of a job that was replaced": [name("a"), ("replaced", ["a", "b"]), name("b")],
    "a name of a job that has expired": [name("a", expires=START + 1), ("expired", ["a"]), name("b")],
    "a name that an operator freed": [name("a"), ("freed", ["a", NAME]), name("b"), CLAIMED, DIED, REQUEUED],
    # A claim may have forgotten the name meanwhile.
    "a window that the clock has passed, and it goes back": [
        until("a", 60_000), at(START + 61_000), of_queue("paused"), at(START + 10_000), until("b", 70_000),
    ],
    "a restored job that was claimed takes no name": [name("b", "claim:9"), restored_named(1)],
    "no value": value_told(),
    "the digest of a value": value_told(digest_of("[1]")),
    "a value and its digest": value_told(digest_of("[1]"), "[1]"),
    "an id at its moment, and the clock goes back": [*REMEMBERED, at(ONCE), jobs("other"), at(ONCE - 500), once()],
    "an id whose job was cancelled before a claim": [at(ONCE - 1_000), once(), ("cancelled", ["a"]), once()],
    "an id whose job expired before a claim": [
        at(ONCE - 1_000), once(expires=ONCE - 1_000), ("expired", ["a"]), once(),
    ],
    "an id whose job was replaced before a claim": [
        at(ONCE - 1_000), once(), ("replaced", ["a", "b"]), (*jobs("b"), remembered()),
    ],
    "an id that is not remembered": [once(None), CLAIMED, SUCCEEDED, once(None)],
    "an id that Redis remembered in another epoch": [*REMEMBERED, new_epoch, once()],
    **{
        f"a slot whose claim was {end}": [
            TENANT_1, jobs("a", "b"), ("claimed", ["a", 1, TENANT]), *told, ("claimed", ["b", 1, TENANT]),
        ]
        for end, told in ENDS_OF_CLAIMS.items()
    },
    "a cap that was lowered ends no claim": LOWERED,
    "a key that was given back has its family's limit": GIVEN_BACK,
    "a log that began in the middle": IN_THE_MIDDLE,
    # Redis had dropped what was spent of the rate before a replica with another clock took over.
    "a server whose clock is behind": [
        of_queue("cap_changed", "tenant@1s", None, "1/1000ms/1", 1), jobs("a", "b", lane="2+tenant@1s=acme"),
        ("claimed", ["a", 1, SLOW]), at(START - 4_000), new_epoch, ("claimed", ["b", 1, SLOW]),
    ],
    # A task's own scope comes and goes without an event.
    "an edit to run now": [delayed, ("edited", ["a", 1, None, "normal", None, None, *BEFORE])],
    "an edit of the priority": [
        delayed, ("edited", ["a", None, DUE, "high", "1+task=send+tenant=acme", None, *BEFORE]),
    ],
    "an edit of all": [delayed, ("edited", ["a", 1, None, "critical", "0+tenant=acme", DUE, *BEFORE])],
    "an edit of the due time": [delayed, ("edited", ["a", None, DUE + 1, "normal", None, DUE + 2, *BEFORE])],
    "a refused settlement ends nothing": [
        jobs("a"), CLAIMED,
        ("settlement_refused", ["a", "7-1", "complete", "stale"], ["ghost", "7-1", "complete", "stale"]), SUCCEEDED,
    ],
}  # fmt: skip
ONE_NAME: dict[str, list[Told]] = {
    "a window that is over": [until("a", 60_001), at(START + 60_002), until("b", 120_002), CLAIMED, SUCCEEDED],
    **{
        f"the first claim frees a name, and nothing takes it again: {then}": [
            name("a", "claim:9"), CLAIMED, name("b", "claim:9"), *told, ("claimed", ["a", 2]),
        ]
        for then, told in {
            "retried": [RETRIED], "rolled back": ENDS_OF_CLAIMS["rolled back"], "requeued": [DIED, REQUEUED],
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("case", [*HOLDS, *ONE_NAME])
def test_replay_accepts_a_legal_history(log: MemoryWriter, case: str) -> None:
    tell(log, *(HOLDS | ONE_NAME)[case])
    found = replay(log)

    assert (found.violations, found.notes) == ([], [])
    assert case in HOLDS or len(found.names) == 1


FORBIDDEN: dict[str, tuple[list[Told], str, str]] = {
    "a name that is taken twice": ([name("a"), name("b")], "I13", "job a holds it"),
    "a requeue takes a name again": (
        [name("a"), CLAIMED, RETRIED, ("claimed", ["a", 2]), ("died", ["a", "F", "final", 2, None]), name("b"),
         REQUEUED],
        "I13", "job b holds it",
    ),
    "a name that no job holds is freed": ([jobs("a"), ("freed", ["a", NAME])], "I13", "none does"),
    "a name that another job holds is freed": ([jobs("a"), name("b"), ("freed", ["a", NAME])], "I13", "job b does"),
    "a name that is taken before its job was claimed": ([name("a", "claim:9"), name("b", "claim:9")], "I13", "job a"),
    "a restored job takes a name that another holds": ([name("b", "claim:9"), restored_named(0)], "I13", "job b"),
    "a value of a job that keeps none": (
        value_told(digest_of("[1]"), keep_ms=None), "I14", "has a value, and the job keeps no result",
    ),
    "a job is restored while its id is remembered": (
        [*REMEMBERED, ("restored", ["a", 2, None, "ready", "send", "normal", 3, 3, "d", None, 0, 0, 0, 0])],
        "I14", "before its id is forgotten",
    ),
    "a new epoch ends no claim": (
        [TENANT_1, jobs("a", "b"), ("claimed", ["a", 1, TENANT]), new_epoch, ("claimed", ["b", 1, TENANT])],
        "I3", "2 hold tenant=acme, its cap is 1",
    ),
    "holders are counted within an entry": (
        [of_queue("cap_changed", "queue", None, "2", 1), jobs("a", "b", "c"),
         ("claimed", *([i, 1, [["queue", 2]]] for i in "abc"))],
        "I3", "3 hold queue, its cap is 2",
    ),
    "all claimed jobs of a task count, whatever their claims listed": (
        [jobs("a", "b"), CLAIMED, of_queue("cap_changed", "task=send", None, "1", 1),
         ("claimed", ["b", 1, [["task=send", 1]]])],
        "I3", "2 hold task=send, its cap is 1",
    ),
    "a cap that was lowered admits no claim": (
        [*LOWERED, SUCCEEDED, ("claimed", ["c", 1, [["queue", 1]]])], "I3", "2 hold queue, its cap is 1",
    ),
    "a claim carries another cap than was stored": (
        [TENANT_1, of_queue("cap_changed", "tenant=acme", None, "5", 1), jobs("a"),
         ("claimed", ["a", 1, [["tenant=acme", 9]]])],
        "I3", "the claim says tenant=acme ≤ 9, stored is 5",
    ),
    "a claim leaves a scope out": (
        [TENANT_1, of_queue("cap_changed", "task=send", None, "1", 1), jobs("a", lane="2+task=send+tenant=acme"),
         ("claimed", ["a", 1, [["task=send", 1]]])],
        "I3", "the claim says tenant=acme ≤ none, stored is 1",
    ),
    "a claim leaves all scopes out": (
        [TENANT_1, jobs("a", lane="2+tenant=acme"), ("claimed", ["a", 1, None])],
        "I3", "the claim says tenant=acme ≤ none, stored is 1",
    ),
    "a job that was put into another lane holds its scopes": (
        [TENANT_1, jobs("a"), CLAIMED, ("rolled_back", ["a", "F", None, "lane_changed", None, "2+tenant=acme"]),
         ("claimed", ["a", 2])],
        "I3", "the claim says tenant=acme ≤ none, stored is 1",
    ),
    "a key that was set again has its own limit": (
        [*GIVEN_BACK, ("claimed", ["b", 1, [["tenant=acme", 1]]])], "I3", "the claim says tenant=acme ≤ 1, stored is 7",
    ),
    "a version of a limit is left out": (
        [TENANT_1, of_queue("cap_changed", "tenant", "1", "2", 3)],
        "I3", "version 3 of the limit of tenant follows version 1",
    ),
    "a limit was another": (
        [TENANT_1, of_queue("cap_changed", "tenant", "7", "2", 2)], "I3", "the limit of tenant was 1, the event says 7",
    ),
    "a limit begins with its second version": (
        [TENANT_1, of_queue("cap_changed", "task=send", None, "2", 2)],
        "I3", "version 2 of the limit of task=send follows version 0",
    ),
    "a rate of none admits no claim": (
        [of_queue("cap_changed", "tenant@1s=acme", None, "0/1000ms/1", 1), jobs("a"),
         ("claimed", ["a", 1, [["tenant@1s=acme", 0, 1000, 1]]])],
        "I3", "claimed under tenant@1s=acme, which is stopped",
    ),
    **{
        f"edited while {state}": ([jobs("a"), CLAIMED, *told, EDITED_HIGH], "I6", "is not")
        for state, told in {
            "running": [], "cancelling": [("cancel_requested", ["a", "F"])], "dead": [DIED], "gone": [SUCCEEDED],
        }.items()
    },
    "the deadline of an edit holds for the next claim": (
        [jobs("a"), ("edited", ["a", 1, None, "normal", None, START + 100, None, "normal", None]),
         ("edited", ["a", 1, None, "low", None, START + 100, None, "normal", START + 100]), at(START + 100), CLAIMED],
        "I19", "deadline",
    ),
    "more failures than attempts": (
        [jobs("a", most=1), CLAIMED, RETRIED], "I4", "makes the job ready at failure 1 of at most 1",
    ),
    **{
        f"after a claim: {n}, {says}": ([jobs("a"), CLAIMED, *told], invariant, says)
        for n, (told, invariant, says) in enumerate([
            ([("claimed", ["a", 2])], "I2", "is claimed while claim F is in force"),
            ([SUCCEEDED, ("claimed", ["a", 2])], "I6", "happens to a job that is not"),
            ([SUCCEEDED, SUCCEEDED], "I2", "ends a claim of a job that"),
            ([("rolled_back", ["a", "F"]), ("retried", ["a", "F", None, 1])], "I2", "none is in force"),
            ([("succeeded", ["a", "7-1"])], "I9", "presents fence 7-1, in force is F"),
            ([("cancel_requested", ["a", "7-1"])], "I9", "concerns fence 7-1, in force is F"),
            ([("lease_expired", ["a", "F", "w-2", 1, "ready"])], "I9", "ends a claim of w-2, in force is"),
            ([("requeued", ["a", 1])], "I6", "running -requeued-> is not a transition"),
            ([("pruned", ["a"])], "I6", "running -pruned-> is not a transition"),
            ([("promoted", ["b", 1])], "I6", "happens to a job that is not alive"),
            ([jobs("a")], "I6", "running -enqueued->"),
            ([("discarded", ["a", "send", None, "tenant=acme", 1])], "I6", "running -discarded->"),
            ([("rolled_back", ["a", "F"]), ("claimed", ["a", 3])], "I4", "is claim 3, the one before"),
            ([("retried", ["a", "F", None, 2])], "I4", "is failure 2, the one before was 0"),
            ([("died", ["a", "F", "final", 2])], "I4", "is failure 2, the one before was 0"),
            ([("lease_expired", ["a", "F", "w-1", 2, "ready"])], "I4", "is loss 2, the one before"),
            ([("lease_expired", ["a", "F", "w-1", 1, "dead"])], "I4", "makes the job dead at loss 1"),
        ])
    },
}  # fmt: skip


@pytest.mark.parametrize("case", FORBIDDEN)
def test_replay_reports_an_illegal_history(log: MemoryWriter, case: str) -> None:
    """Checks that the report names the last entry, which is the illegal one."""
    told, invariant, says = FORBIDDEN[case]
    tell(log, *told)
    found = the_violation(log)

    assert found.invariant == invariant
    assert says.replace("F", f"{log.epoch}-2") in found.says
    assert (found.epoch, found.seq) == (log.epoch, log.seq)


# Numbers, epochs and what cannot be told (I5).


def test_replay_reports_a_gap_that_was_not_recorded(log: MemoryWriter) -> None:
    enqueue(log, "a")
    log.queue_event("paused")
    log.queue_event("resumed")
    del log.rows[2]

    found = the_violation(log)

    assert (found.invariant, found.seq) == ("I5", 3)
    assert found.says == f"entries are missing: the one before is {log.epoch}-1"


def test_replay_reports_an_entry_that_lacks_one_of_its_jobs(log: MemoryWriter) -> None:
    enqueue(log, "a", "b", "c")
    del log.rows[2]

    assert the_violation(log).says == "is number 2 of its entry, 1 is missing"


def test_a_recorded_gap_causes_a_note_and_no_violation(log: MemoryWriter) -> None:
    enqueue(log, "a")
    log.jobs("claimed", ["a", 1])
    log.jobs("claimed", ["b", 7])
    del log.rows[1:3]
    at = OutboxId(log.epoch, log.seq)

    found = replay(log, recorded={at: ["gap"]})

    assert found.violations == []
    assert [note.at for note in found.notes] == [at, at]
    assert "are missing, as recorded" in found.notes[0].says


def test_replay_reports_entries_that_are_missing_before_an_epoch(log: MemoryWriter) -> None:
    enqueue(log, "a")
    log.begin(log.epoch + 1000, "replid_changed", f"{log.epoch}-9")

    found = the_violation(log)

    assert found.invariant == "I5"
    assert "Redis had entries up to" in found.says


def test_replay_leaves_out_orphaned_events(log: MemoryWriter) -> None:
    """Checks a failover that lost a claim. The job was claimed again, and the number of the new claim is again 1."""
    enqueue(log, "a")
    known = OutboxId(log.epoch, log.seq)
    fence = log.jobs("claimed", ["a", 1])
    log.jobs("succeeded", ["a", fence])
    log.begin(log.epoch + 1000, "replid_changed", str(known))
    log.jobs("claimed", ["a", 1])
    beginnings = [
        EpochStart(known.epoch, "created", None),
        EpochStart(log.epoch, "replid_changed", known),
    ]

    found = replay(log, beginnings=beginnings)

    assert (found.violations, found.orphans, found.notes) == ([], 2, [])
    assert [loss.orphaned for loss in found.losses] == [2]
    assert list(found.jobs) == ["a"]


def test_replay_counts_all_jobs_as_lost_when_redis_was_emptied(log: MemoryWriter) -> None:
    log.queue_event("cap_changed", "queue", None, "1", 1)
    enqueue(log, "a")
    log.jobs("claimed", ["a", 1, [["queue", 1]]])
    log.begin(log.epoch + 1000, "created")
    enqueue(log, "a")
    log.jobs("claimed", ["a", 1])
    log.jobs("claimed", ["b", 1])

    found = replay(log)

    (violation,) = found.violations
    assert violation.says == "happens to a job that is not alive"
    assert "1 live job was lost" in found.losses[0].says


def test_replay_accepts_any_event_of_an_unknown_job_before_the_baseline_is_complete() -> None:
    log = MemoryWriter()
    old = log.epoch
    log.begin(old + 1, "attached", f"{old}-0")
    log.jobs("succeeded", ["ran", "5-1"])
    log.jobs(
        "baseline", ["b", "running", "send", "normal", 3, 3, 1, None, 1, 0, 0, 0, "5-1", "w-1"]
    )
    beginnings = [EpochStart(old, "created", None), EpochStart(log.epoch, "attached", None)]
    unfinished = replay(log, beginnings=beginnings)
    log.queue_event("policy_changed", "baseline", "pending", "done")
    log.jobs("succeeded", ["b", "5-1"])
    finished = replay(log, beginnings=beginnings)
    log.jobs("promoted", ["nobody", 1])

    assert unfinished.violations == []
    assert "no complete baseline" in unfinished.notes[0].says
    assert (finished.violations, finished.notes) == ([], [])
    assert the_violation(log, beginnings=beginnings).job_id == "nobody"


def test_replay_reads_the_holders_of_each_scope_from_a_baseline() -> None:
    log = MemoryWriter()
    old = log.epoch
    log.begin(old + 1, "attached", f"{old}-0")
    running = ["a", "running", "send", "normal", 3, 3, 1, None, 1, 0, 0, 0, "5-1", "w", 1, None]
    log.jobs("baseline", [*running, "2+task=send+tenant=acme"])
    log.queue_event("policy_changed", "baseline", "pending", "done")
    enqueue(log, "b")
    log.jobs("claimed", ["b", 1, [["tenant=acme", 1], ["task=send", 1], ["queue", 1]]])

    assert [v.says for v in replay(log).violations] == [
        f"2 hold {scope}, its cap is 1" for scope in ("tenant=acme", "task=send", "queue")
    ]


def test_an_entry_in_quarantine_causes_a_note_and_no_violation(log: MemoryWriter) -> None:
    enqueue(log, "a")
    log.jobs("claimed", ["a"])  # without its number
    log.jobs("succeeded", ["a", f"{log.epoch}-{log.seq}"])

    found = replay(log)

    assert found.violations == []
    assert "quarantine" in found.notes[0].says


def test_a_log_without_events_causes_a_note() -> None:
    found = Replay("mail")
    found.finish()

    assert [note.says for note in found.notes] == ["there are no events"]


def test_replay_does_not_judge_events_before_the_time_in_the_option_since_ms(
    log: MemoryWriter,
) -> None:
    enqueue(log, "a")
    log.jobs("claimed", ["a", 5])
    since = log.now_ms + 1
    log.jobs("claimed", ["a", 6])

    assert the_violation(log, since_ms=since).says.startswith("is claimed while")


def test_replay_reports_an_unreadable_event_and_continues(log: MemoryWriter) -> None:
    enqueue(log, "a")
    row = log.rows[-1]
    log.rows[-1] = (*row[:-1], "{")

    assert the_violation(log).invariant == "I7"


def test_replay_counts_all_violations_and_lists_the_first_20(log: MemoryWriter) -> None:
    for n in range(50):
        log.jobs("promoted", [f"j{n}", 1])

    found = replay(log)

    assert (found.counts["I6"], len(found.violations)) == (50, 20)


@pytest.mark.parametrize("nobody", [None, ""])
@pytest.mark.parametrize("kind", ["requeued", "cancelled", "pruned", "claimed"])
def test_replay_reports_an_event_that_names_no_actor(
    log: MemoryWriter, kind: str, nobody: str | None
) -> None:
    enqueue(log, "a", "b")
    fence = log.jobs("claimed", ["a", 1])
    log.jobs("died", ["a", fence, "final_failure", 1, None])
    other = {"cancelled": ["b"], "requeued": ["a", 2], "pruned": ["a"], "claimed": ["b", 1]}
    log.jobs(kind, other[kind], by="ada")
    assert replay(log).violations == []

    log.rows[-1] = (*log.rows[-1][:8], nobody, *log.rows[-1][9:])

    found = the_violation(log)
    assert ("I6", "names no actor") == (found.invariant, found.says)
