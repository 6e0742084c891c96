"""The mirror computes rows from events by a fast fold. The fast fold agrees with the slower folds of other modules."""

import gc
import json
import random
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from rq_core.model import events as history
from rq_core.model.events import OutboxId
from rq_core.model.table.effects import CLEARS, EFFECTS
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.machine import CLAIMED_STATES, TRANSITIONS, Event, State, Transition
from sql_audit.mirror import intake as entries
from sql_audit.mirror.field_types import KINDS, LANE_LENGTH_MAX
from sql_audit.mirror.projection.fold import Folder
from sql_audit.proof.derived_rows import Derivation
from sql_audit.store.connection.copy import copy_text
from sql_audit.store.job_rows import CLAIM_TASK, Attempt, JobRow
from sql_audit.store.schema import tables

EPOCH = 1_795_225_746_504
TASKS = ("send", "resize")
ARROWS = (
    *TRANSITIONS,
    *(Transition(state, Event.BASELINE, state, "baseline") for state in (*State, None)),
    Transition(State.READY, Event.BASELINE, None, "repair"),
    Transition(None, Event.BASELINE, State.RUNNING, "repair"),
)


class Story:
    """Random entries about a few jobs. The table of transitions allows most of these entries."""

    def __init__(self, seed: int, jobs: int = 6) -> None:
        self.random = random.Random(seed)
        self.ids = [f"job-{n}" for n in range(jobs)]
        self.states: dict[str, State | None] = dict.fromkeys(self.ids)
        self.fences: dict[str, str | None] = dict.fromkeys(self.ids)
        self.claims = dict.fromkeys(self.ids, 0)
        self.seq = -1
        self.now_ms = EPOCH

    def entry(self) -> tuple[OutboxId, dict[str, str]]:
        """Return the next entry. In most cases it moves all jobs of one state by one transition of the table."""
        if self.random.random() < 0.05:
            return self._unmoved()
        arrow = self.random.choice(ARROWS)
        chosen = [i for i in self.ids if self.states[i] == arrow.source]
        if self.random.random() < 0.05:
            chosen = self.random.sample(self.ids, 1)
        if not chosen:
            return self.entry()
        self.seq += 1
        self.now_ms += self.random.randrange(50)
        at = OutboxId(EPOCH, self.seq)
        arrays = [self._array(i, arrow, at) for i in chosen]
        raw = {
            "type": str(arrow.event),
            "at": str(self.now_ms),
            "by": f"w-{self.random.randrange(3)}",
            "jobs": json.dumps(arrays),
        }
        if self.random.random() < 0.2:
            raw["why"] = "because ü"
        return at, raw

    def _unmoved(self) -> tuple[OutboxId, dict[str, str]]:
        """Return an entry after which each job has the same state as before."""
        self.seq += 1
        if self.random.random() < 0.5:
            kind = self.random.choice(("step_begun", "step_saved"))
            entries = [
                [i, "7-1", f"{self.seq:016x}", 1, "a"] for i in self.random.sample(self.ids, 2)
            ]
            raw = {"type": kind, "at": str(self.now_ms), "by": "w-1", "jobs": json.dumps(entries)}
            return OutboxId(EPOCH, self.seq), raw
        arrays = [[i, "send/tenant=acme"] for i in self.random.sample(self.ids, 2)]
        said = {"type": "freed", "at": str(self.now_ms), "by": "ops", "jobs": json.dumps(arrays)}
        return OutboxId(EPOCH, self.seq), said

    def _array(self, job_id: str, arrow: Transition, at: OutboxId) -> list[Any]:
        values = self._values(job_id, arrow)
        if arrow.event is Event.ENQUEUED:
            self.claims[job_id] = 0
        if arrow.event is Event.CLAIMED:
            self.fences[job_id] = str(at)
        if arrow.event is Event.BASELINE:
            self.fences[job_id] = values["fence"]
        self.states[job_id] = arrow.target
        if arrow.target not in CLAIMED_STATES:
            self.fences[job_id] = None
        array = [values[field.name] for field in JOB_EVENT_FIELDS[arrow.event]]
        while self.random.random() < 0.5 and array[-1] is None:
            array.pop()
        return array

    def _values(self, job_id: str, arrow: Transition) -> dict[str, Any]:
        if arrow.event is Event.CLAIMED:
            self.claims[job_id] += 1
        delayed = arrow.target is State.SCHEDULED
        fence = self.fences[job_id]
        if arrow.event is Event.BASELINE and arrow.target in CLAIMED_STATES and fence is None:
            fence = f"{EPOCH}-{self.seq}"
        error = {"type": "ValueError", "message": "no", "traceback": "line\nline"}
        return {
            "id": job_id,
            "fence": fence,
            "seq": self.random.randrange(1000),
            "due_ms": self.now_ms + self.random.randrange(100) if delayed else None,
            "task": self.random.choice(TASKS),
            "priority": self.random.choice(("critical", "high", "normal", "low")),
            "max_attempts": 3,
            "max_losses": 3,
            "digest": "d" * 32,
            "claim": self.claims[job_id],
            "failures": self.random.randrange(4),
            "losses": self.random.randrange(4),
            "error": self.random.choice((error, None)),
            "reason": self.random.choice(("final", "attempts")),
            "unknown": self.random.randrange(3),
            "worker": "w-1" if arrow.target in CLAIMED_STATES else None,
            "state": None if arrow.target is None else str(arrow.target),
            "since_ms": self.now_ms - self.random.randrange(100),
            "target": str(arrow.target),
            "spec": self.random.choice((None, '{"task":"t","args":{"a":"/é"}}')),
            "enqueued_ms": self.now_ms,
            "old_due_ms": self.random.choice((None, self.now_ms)),
            "old_priority": "low",
            "old_expires_ms": self.random.choice((None, self.now_ms)),
            "expires_ms": self.random.choice((None, self.now_ms + 1_000)),
            "unique_name": self.random.choice((None, "send/tenant=acme")),
            "name_stands": self.random.choice((None, "claim:1795225746504")),
            "once_ms": self.random.choice((None, self.now_ms + 1_000)),
            "call_digest": self.random.choice((None, "70c5")),
            "keep_ms": self.random.choice((None, 60_000)),
            "life": self.random.choice((None, "9f3a0b1c22aa0001")),
            "cost": self.random.choice((None, "points:3,tokens:1500")),
            "base": self.random.choice((None, "1/0")),
            "waits": self.random.choice(("1", "2,3")),
            "cause": self.random.choice((None, 1)),
            "value_digest": self.random.choice((None, "e" * 32)),
            "value": self.random.choice((None, '["/é", "\\u0000"]')),
            "by_job": "job-0",
            "dead": 1 if arrow.target is State.DEAD else None,
            "claims": self.claims.get(job_id, 0),
            "lane": self.random.choice((None, "2+task=send", "2+task=send+tenant=acme")),
            "scope": "tenant=acme",
            "cap": 1,
            "scopes": self.random.choice((None, [["tenant=acme", 1], ["queue", 7]])),
        }


@pytest.mark.parametrize("seed", range(20))
def test_outbox_entries_that_are_read_together_give_the_same_events_as_entries_read_one_by_one(
    seed: int,
) -> None:
    """Checks valid entries, with up to five invalid entries in between."""
    story, dice = Story(seed), random.Random(seed)
    log = [story.entry() for _ in range(80)]
    poison = [
        {"jobs": "[[]]"}, {"jobs": "[]"}, {"jobs": "[[1]]"}, {"jobs": '["a"]'}, {"jobs": "[[NaN]]"},
        {"jobs": '[["a\\u0000"]]'}, {"jobs": '[["a\0"]]'}, {"jobs": '[["ü"]]'}, {"at": "now"},
        {"jobs": json.dumps([["a"] * 40])}, {"jobs": json.dumps([["a", [], {}, [1], -1]])},
        {"by": "ü\0"}, {"by": "w" * 600}, {"type": "unheard of"}, {"data": "more"},
    ]  # fmt: skip
    for _ in range(dice.randrange(6)):
        place = dice.randrange(len(log))
        log[place] = log[place][0], log[place][1] | dice.choice(poison)

    together = entries.take_all(log)

    assert [plain(intake) for intake in together] == [plain(entries.take(*each)) for each in log]


def plain(intake: entries.Intake) -> tuple[Any, ...]:
    columns = {name: list(values) for name, values in intake.columns.items()}
    facts = (getattr(intake, name) for name in intake.__slots__ if name != "columns")
    return (columns, *facts)


@pytest.mark.parametrize("seed", range(10))
def test_the_text_that_the_chain_hashes_can_be_computed_again_from_the_rows_of_a_batch(
    seed: int,
) -> None:
    """Checks that the chain, a hash of the copied lines, can be computed from the rows in the database."""
    story = Story(seed)
    log = [story.entry() for _ in range(60)]
    log[7] = log[7][0], log[7][1] | {"jobs": '[["a"], 5, ["b", 1, 2, 3, 4, 5, 6, 7]]'}
    folder = Folder("mail", ())

    for intake in entries.take_all(log):
        folder.add(intake)

    assert copy_text(folder.events, folder.lines) == copy_text(folder.events)


def test_the_memory_of_a_batch_is_freed_by_reference_counts_without_the_cycle_collector() -> None:
    """Checks that a batch has no reference cycle. A mirror seldom runs the cycle collector, and batches are large."""
    story = Story(1)
    folder = Folder("mail", ())
    for intake in entries.take_all([story.entry() for _ in range(20)]):
        folder.add(intake)
    left = weakref.ref(folder)

    gc.disable()
    try:
        del folder
        assert left() is None
    finally:
        gc.enable()


def fold_in_batches(story: list[tuple[OutboxId, dict[str, str]]], sizes: Sequence[int]) -> Folder:
    """Fold entries in batches, as the mirror does. Each batch begins with the rows of the batch before."""
    jobs: dict[str, tuple[Any, ...]] = {}
    events = []
    attempts: dict[tuple[str, str], dict[str, Any]] = {}
    rest = list(story)
    folder = Folder("q", ())
    for size in [*sizes, len(rest)]:
        batch, rest = rest[:size], rest[size:]
        folder = Folder("q", jobs.values(), at_ms=folder.at_ms)
        for at, raw in batch:
            folder.add(entries.take(at, raw))
        new, old = folder.job_rows()
        jobs |= {row[0]: row for row in new + old}
        events += folder.events
        for row in [*folder.attempt_rows()[0], *folder.attempt_rows()[1]]:
            named = dict(zip(tables.ATTEMPT_COLUMNS, row, strict=True))
            kept = attempts.setdefault((named["job_id"], named["fence"]), named)
            ends = {n: v for n, v in named.items() if n in tables.ENDING_COLUMNS and v is not None}
            kept.update({n: v for n, v in named.items() if kept[n] is None} | ends)
    result = Folder("q", jobs.values())
    result.events = events
    for key, named in attempts.items():
        result.begun[key] = Attempt(named[name] for name in tables.ATTEMPT_COLUMNS)
    return result


def as_history_sees(job: JobRow) -> dict[str, Any]:
    known = {str(s) for s in State}
    fields = {
        name: getattr(job, name)
        for name in (
            "task", "priority", "max_attempts", "max_losses", "seq", "lane", "due_ms", "since_ms",
            "claims", "failures", "losses", "unknown", "fence", "worker", "reason",
        )
    }  # fmt: skip
    return {
        **fields,
        "state": State(job.state) if job.state in known else None,
        "complete": bool(job.complete),
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_mirror_computes_the_same_jobs_from_events_as_the_readers_of_the_log(
    seed: int,
) -> None:
    """Compares the fast fold with history.fold, which all other readers use."""
    story = Story(seed)
    told = [story.entry() for _ in range(80)]
    records, _ = history.fold_all(history.decode(str(at), raw) for at, raw in told)

    folder = fold_in_batches(told, [story.random.randrange(1, 20) for _ in range(5)])

    expected = {
        job_id: {name: getattr(record, name) for name in as_history_sees(JobRow.new("q", "x"))}
        for job_id, record in records.items()
    }
    assert {i: as_history_sees(job) for i, job in folder.jobs.items()} == expected


class ByTheTable(Folder):
    """A fold that takes each step from the table of effects, without shortcuts."""

    _steps: ClassVar = {
        **dict.fromkeys(EFFECTS, Folder._by_the_table),
        **dict.fromkeys(CLEARS, Folder._unmoved),
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_mirror_computes_the_same_rows_as_a_slow_computation_by_the_table_of_effects(
    seed: int,
) -> None:
    story = Story(seed)
    told = [story.entry() for _ in range(120)]
    fast, general = Folder("q", ()), ByTheTable("q", ())

    for at, raw in told:
        fast.add(entries.take(at, raw))
        general.add(entries.take(at, raw))

    assert fast.events == general.events
    assert fast.lines == general.lines
    assert fast.job_rows() == general.job_rows()
    assert sorted(fast.attempts) == sorted(general.attempts)


@pytest.mark.parametrize("seed", range(10))
def test_the_mirror_computes_the_same_rows_for_batches_of_any_size(seed: int) -> None:
    story = Story(seed)
    told = [story.entry() for _ in range(60)]

    whole = fold_in_batches(told, [])
    parts = fold_in_batches(told, [1] * 60)

    assert parts.events == whole.events
    assert parts.job_rows() == ([], [])
    for name in tables.JOB_COLUMNS:
        assert {i: getattr(j, name) for i, j in parts.jobs.items()} == {
            i: getattr(j, name) for i, j in whole.jobs.items()
        }
    for name in tables.ATTEMPT_COLUMNS:
        assert {k: getattr(a, name) for k, a in parts.begun.items()} == {
            k: getattr(a, name) for k, a in whole.begun.items()
        }


def test_every_field_of_an_event_has_a_data_type_that_the_mirror_checks() -> None:
    """Checks the fields in machine.py. The mirror checks a value by its kind before it writes the value to a column."""
    names = {field.name for fields in JOB_EVENT_FIELDS.values() for field in fields}

    assert names <= set(KINDS)


def test_the_mirror_handles_every_type_of_event_about_jobs() -> None:
    assert set(Folder("q", ())._steps) == set(JOB_EVENT_FIELDS)


def test_the_log_has_exactly_the_expected_terminal_states_and_outcomes() -> None:
    assert set(tables.TERMINAL_STATES) == {
        "discarded", "replaced", "succeeded", "cancelled", "pruned", "removed", "expired",
    }  # fmt: skip
    assert set(tables.OUTCOMES) == {
        "succeeded", "retried", "died", "rolled_back", "lease_expired", "cancelled", "parked",
        tables.LOST,
    }  # fmt: skip


def fold(*told: tuple[str, int, list[Any]]) -> Folder:
    """Fold entries. An entry is given as its event, its time in ms, and the array of its one job."""
    folder = Folder("q", ())
    for seq, (event, at_ms, array) in enumerate(told):
        raw = {"type": event, "at": str(at_ms), "by": "w-1", "jobs": json.dumps([array])}
        folder.add(entries.take(OutboxId(7, seq), raw))
    return folder


def test_the_waiting_time_of_a_job_begins_at_its_due_time() -> None:
    """Checks a delayed job that is promoted only by a later claim. Its wait begins before the promotion."""
    folder = fold(
        ("enqueued", 1000, ["a", None, 2000, "send", "normal", 3, 3]),
        ("promoted", 2600, ["a", 1]),
        ("claimed", 2600, ["a", 1]),
        ("succeeded", 3000, ["a", "7-2"]),
    )

    (attempt,) = folder.begun.values()
    assert (attempt.ready_at_ms, attempt.waited_ms, attempt.ran_ms) == (2000, 600, 400)
    assert attempt.outcome == "succeeded"


def test_the_claims_of_an_earlier_job_are_kept_when_its_id_is_used_again() -> None:
    life: list[tuple[str, int, list[Any]]] = [
        ("enqueued", 10, ["a", 1, None, "send", "normal", 3, 3]),
        ("claimed", 20, ["a", 1]),
        ("succeeded", 30, ["a", "7-1"]),
        ("enqueued", 40, ["a", 2, None, "send", "normal", 3, 3]),
        ("claimed", 50, ["a", 1]),
    ]

    folder = fold(*life)

    assert [(a.fence, a.claim, a.outcome) for a in folder.begun.values()] == [
        ("7-1", 1, "succeeded"),
        ("7-4", 1, None),
    ]
    assert folder.jobs["a"].state == "running"
    assert folder.jobs["a"].finished_at_ms is None


def test_a_claim_gets_its_task_from_a_later_baseline_whatever_the_size_of_the_batches() -> None:
    """Checks an audit log that begins between a claim and the end of the claim.

    The mirror, a new fold and verify compute the same row for the claim.
    """
    baseline = [
        "a", "running", "send", "normal", 3, 3, 1, None, 1, 0, 0, 0, "7-0", "w-1", 10, None,
    ]  # fmt: skip
    told: list[tuple[OutboxId, dict[str, str]]] = [
        (OutboxId(7, seq), {"type": event, "at": "20", "by": "w-1", "jobs": json.dumps([array])})
        for seq, (event, array) in enumerate(
            [("claimed", ["a", 1]), ("baseline", baseline), ("succeeded", ["a", "7-0"])]
        )
    ]
    folders = [fold_in_batches(told, sizes) for sizes in ([], [1], [2], [1, 1])]
    derived = Derivation("q")
    derived.feed(folders[0].events)

    rows = [list(folder.begun["a", "7-0"]) for folder in folders]
    rows.append(derived.jobs["a"].attempts["7-0"])

    assert [row[CLAIM_TASK] for row in rows] == ["send"] * 5
    assert rows == [rows[0]] * 5


@pytest.mark.parametrize("seed", range(40))
def test_the_mirror_and_verify_agree_on_a_log_that_begins_with_a_claim(
    seed: int,
) -> None:
    story = Story(seed)
    told = [story.entry() for _ in range(300)]
    claims = [n for n, (_, raw) in enumerate(told) if raw["type"] == "claimed"]
    told = told[story.random.choice(claims) :]
    whole, parts = fold_in_batches(told, []), fold_in_batches(told, [1] * 60)
    derived = Derivation("q")

    derived.feed(whole.events)

    assert parts.begun == whole.begun
    assert whole.begun == {
        (job_id, fence): attempt
        for job_id, job in derived.jobs.items()
        for fence, attempt in job.attempts.items()
    }


def test_a_refused_settlement_creates_no_job_row() -> None:
    folder = fold(("settlement_refused", 10, ["ghost", "7-0", "complete", "gone"]))

    assert folder.job_rows() == ([], [])
    assert [row[4] for row in folder.events] == ["settlement_refused"]


def test_a_baseline_keeps_the_outcome_of_a_finished_job() -> None:
    folder = fold(
        ("enqueued", 10, ["a", 1, None, "send", "normal", 3, 3]),
        ("claimed", 20, ["a", 1]),
        ("succeeded", 30, ["a", "7-1"]),
        ("baseline", 40, ["a", None]),
        ("enqueued", 50, ["b", 2, None, "send", "normal", 3, 3]),
        ("baseline", 60, ["b", None]),
    )

    assert {i: job.state for i, job in folder.jobs.items()} == {"a": "succeeded", "b": "gone"}


def test_the_row_of_each_claim_has_its_lane_and_its_scopes() -> None:
    scopes = [["tenant=acme", 1], ["tenant@60s=acme", 5, 60_000, 1], ["queue", 9]]
    folder = fold(
        ("enqueued", 10, ["a", 1, None, "send", "normal", 3, 3, "d", "2+tenant=acme"]),
        ("claimed", 20, ["a", 1, scopes]),
        ("rolled_back", 30, ["a", "7-1", None, "stopping"]),
        ("claimed", 40, ["a", 2]),
        ("rolled_back", 50, ["a", "7-3", None, "lane_changed", None, "2+tenant=umbrella"]),
    )

    assert folder.jobs["a"].lane == "2+tenant=umbrella"
    first, second = folder.begun.values()
    assert json.loads(first.scopes or "") == scopes
    assert second.scopes is None


def test_a_discarded_job_has_a_row_and_no_claim() -> None:
    folder = fold(("discarded", 10, ["a", "send", "2+tenant=acme", "tenant=acme", 1]))

    job = folder.jobs["a"]
    assert (job.state, job.task, job.lane) == ("discarded", "send", "2+tenant=acme")
    assert (job.enqueued_at_ms, job.finished_at_ms, job.claims) == (10, 10, 0)
    assert bool(job.complete)
    assert folder.attempt_rows() == ([], [])
    assert json.loads(folder.events[0][10]) == {
        "lane": "2+tenant=acme", "scope": "tenant=acme", "cap": 1,
    }  # fmt: skip


@pytest.mark.parametrize("lane", [7, "x" * (LANE_LENGTH_MAX + 1)])
def test_an_invalid_lane_goes_to_quarantine(lane: Any) -> None:
    raw = {"type": "enqueued", "at": "1", "by": "p"}
    raw["jobs"] = json.dumps([["a", 1, None, "send", "normal", 3, 3, "d", lane]])

    intake = entries.take(OutboxId(7, 0), raw)

    assert [kept.reason.split(" ")[0] for kept in intake.quarantined] == ["lane"]
