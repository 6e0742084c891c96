"""Changes of all jobs that match a filter. Each job is changed once, even if the caller is killed or workers move
jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from rq_core import Filter, InvalidOption, JobsChanged
from rq_core.model.events import Entry
from rq_core.model.table.machine import Event
from rq_core.protocol.calls import bulk, claims
from rq_core.protocol.calls.admin import WHY_MAX, Admin, Change
from rq_core.protocol.calls.bulk import VERBS, BulkChange, BulkPlace
from rq_core.protocol.engine.plan import Pause, Plan
from rq_core.protocol.reads import matches
from tests.kit.seed import Seed

MINUTE = 60_000


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a page have 5 jobs, so that few jobs fill several pages."""
    monkeypatch.setattr(bulk, "IDS_CHUNK", 5)


def change(verb: str, edit: Change | None = None, **given: Any) -> BulkChange:
    own = {name: given.pop(name) for name in ("limit", "dry_run", "reason", "by") if name in given}
    return BulkChange(VERBS[verb], Filter(queue="q", **given), edit or Change(), **own)


def run(seed: Seed, made: BulkChange, place: BulkPlace | None = None, progress: Any = None) -> Any:
    return seed.client.run(seed.client.calls.bulk.run(made, place, progress))


def of_type(seed: Seed, event: Event) -> list[str]:
    """Return the ids of the jobs in all events of this type, in order."""
    return [job.job_id for entry in seed.entries() if entry.event is event for job in entry.jobs]


def entries_of(seed: Seed, event: Event) -> list[Entry]:
    return [entry for entry in seed.entries() if entry.event is event]


def fill(seed: Seed) -> set[str]:
    """Enqueue 40 jobs of two tasks, so that jobs wait in every possible place. Return the ids of task ``send``."""
    for n in range(10):
        task = "send" if n % 2 else "other"
        seed.enqueue(f"plain-{n}", task=task)
        seed.enqueue(f"high-{n}", task=task, priority="high")
        seed.enqueue(f"lane-{n}", task=task, scopes=[f"tenant=t{n % 3}"])
        seed.enqueue(f"later-{n}", task=task, delay_ms=MINUTE)
    return {f"{kind}-{n}" for kind in ("plain", "high", "lane", "later") for n in range(1, 10, 2)}


# What each change does.


def test_a_cancel_by_filter_removes_matching_jobs_from_every_place_where_jobs_wait(
    seed: Seed,
) -> None:
    matching = fill(seed)

    made = run(seed, change("cancel", task="send", reason="closed", by="ann"))

    assert isinstance(made, JobsChanged)
    assert (made.matched, made.changed, made.left, made.complete) == (20, 20, 0, True)
    assert made.outcomes == {"cancelled": 20}
    assert matching == set(of_type(seed, Event.CANCELLED))
    assert 20 == sum(seed.state(job_id) is None for job_id in matching)
    assert 20 == sum(
        seed.state(f"{kind}-{n}") is not None
        for kind in ("plain", "high", "lane", "later")
        for n in range(0, 10, 2)
    )
    for entry in entries_of(seed, Event.CANCELLED):
        assert (entry.by, entry.why) == ("ann", f"bulk {made.id}: closed")


def test_each_term_of_a_filter_selects_only_matching_jobs(seed: Seed) -> None:
    fill(seed)
    args = json.dumps({"to": "a@b.c", "n": 3})
    seed.enqueue("mine", args_json=args)
    headed = seed.job("headed")._replace(headers_json='{"tenant":"acme"}')
    seed.enqueue(headed)

    def count(**terms: Any) -> int:
        made = run(seed, change("cancel", dry_run=True, **terms))
        assert made.changed == 0
        return int(made.matched)

    assert count() == 42
    assert count(states=("scheduled",)) == 10
    assert count(priority="high") == 10
    assert count(scope="tenant=t1", task="send") == 2
    assert count(args={"n": 3}) == count(args={"n": "3", "to": "a@b.c"}) == 1
    assert count(args={"n": 4}) == 0
    assert count(headers={"tenant": "acme"}) == 1
    assert count(due=60) == 10
    assert count(due=59) == 0
    assert count(older=1) == 0
    seed.advance(1000)
    assert count(older=1) == 42
    assert [] == of_type(seed, Event.CANCELLED)


def test_requeue_and_prune_change_dead_jobs_with_the_given_error_oldest_first(seed: Seed) -> None:
    for n in range(12):
        claim = seed.running(f"d{n:02}")
        error = json.dumps({"type": "TimeoutError" if n % 2 else "KeyError", "message": "x"})
        record = (claim.id, claim.fence, "final", 0, "gave_up", error)
        seed.client.run(claims.fail("q", "w-1", [record]))
        seed.advance(10)

    made = run(seed, change("requeue", error="TimeoutError"))

    assert [f"d{n:02}" for n in range(1, 12, 2)] == of_type(seed, Event.REQUEUED)
    assert (made.changed, made.outcomes) == (6, {"requeued": 6})
    made = run(seed, change("prune", error="KeyError", limit=2))
    assert ["d00", "d02"] == of_type(seed, Event.PRUNED)
    assert (made.changed, made.complete) == (2, False)
    made = run(seed, change("prune", states=("dead",)))
    assert (made.changed, made.complete) == (4, True)


def test_a_delay_for_many_jobs_counts_from_the_beginning_of_the_change(
    seed: Seed,
) -> None:
    """Each job is edited once."""
    matching = fill(seed)
    begun = seed.now

    def later(_place: BulkPlace) -> None:
        seed.advance(100)

    made = run(seed, change("edit", Change(due="+120000"), task="send"), progress=later)

    assert matching == set(edited := of_type(seed, Event.EDITED))
    assert len(edited) == made.changed == made.outcomes["edited"] == 20
    for job_id in matching:
        assert f" due={begun + 120_000} " in f"{seed.state(job_id)} "


def test_an_edit_of_the_priority_of_many_jobs_edits_each_job_once(seed: Seed) -> None:
    fill(seed)

    made = run(seed, change("edit", Change("low"), states=("ready",)))

    assert (made.changed, made.complete) == (30, True)
    assert len(set(of_type(seed, Event.EDITED))) == len(of_type(seed, Event.EDITED)) == 30


def test_matching_jobs_that_cannot_be_changed_are_counted_as_left_unchanged(seed: Seed) -> None:
    seed.enqueue("short", expires_in_ms=1000)

    made = run(seed, change("edit", Change(due="+5000")))

    assert (made.changed, made.left, made.outcomes) == (0, 1, {"never": 1})


def test_a_bulk_cancel_leaves_no_entries_of_cancelled_jobs_at_the_head_of_a_list(
    seed: Seed,
) -> None:
    seed.enqueue(*(f"s{n:03}" for n in range(300)), task="send")
    seed.enqueue("a", "b", task="other")
    seed.enqueue("s300", task="send")
    seed.enqueue("c", task="other")

    assert run(seed, change("cancel", task="send")).changed == 301

    assert seed.snapshot()["ready:2"] == ["a", "b", "s300", "c"]
    assert seed.meta("tombstones") == "1"
    assert [claim.id for claim in seed.claim().jobs] == ["a", "b", "c"]


# Workers that act meanwhile.


def test_a_bulk_cancel_does_not_change_a_job_that_was_claimed_after_the_cancel_read_it(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed.enqueue("a", "b")
    original, once = Admin.cancel, iter(range(1))

    def claimed_before(self: Admin, *args: Any, **named: Any) -> Plan[dict[str, str]]:
        if next(once, None) is not None:
            seed.claim(1)
        return (yield from original(self, *args, **named))

    monkeypatch.setattr(Admin, "cancel", claimed_before)
    made = run(seed, change("cancel"))

    assert made.outcomes == {"cancelled": 1, "running": 1}
    assert "running" == str(seed.state("a")).split(" ")[0]
    assert [] == of_type(seed, Event.CANCEL_REQUESTED)


def test_running_jobs_are_asked_to_stop_only_if_the_filter_names_the_state_running(
    seed: Seed,
) -> None:
    held = [seed.running(f"r{n}") for n in range(12)]
    seed.enqueue("waits")

    assert 1 == run(seed, change("cancel", dry_run=True)).matched
    made = run(seed, change("cancel", states=("running",), worker="w-1"))

    assert made.outcomes == {"cancelling": 12}
    assert sorted(claim.id for claim in held) == sorted(of_type(seed, Event.CANCEL_REQUESTED))
    assert seed.state("waits") is not None


def test_a_job_that_dies_again_during_the_change_is_not_requeued_again(seed: Seed) -> None:
    for n in range(12):
        seed.dead(f"d{n:02}")
    seed.advance(10)

    def fails_again(_place: BulkPlace) -> None:
        seed.advance(10)
        for claim in seed.claim(3).jobs:
            seed.fail(claim, verdict="final")

    made = run(seed, change("requeue", states=("dead",)), progress=fails_again)

    assert (made.changed, made.complete) == (12, True)
    assert len(set(of_type(seed, Event.REQUEUED))) == len(of_type(seed, Event.REQUEUED)) == 12


@pytest.mark.parametrize("number", range(6))
def test_a_job_that_always_matches_is_not_missed_while_the_queue_drains_and_fills(
    seed: Seed, number: int
) -> None:
    dice = Random(number)
    matching = fill(seed)
    fresh = iter(range(1000))
    taken: set[str] = set()

    def busy(_place: BulkPlace) -> None:
        seed.advance(dice.randrange(15_000))
        for claim in seed.claim(dice.randrange(4)).jobs:
            taken.add(claim.id)
            seed.complete(claim)
        for _ in range(dice.randrange(4)):
            seed.enqueue(
                f"new-{next(fresh)}", task="other", priority=dice.choice(["high", "normal"])
            )

    made = run(seed, change("cancel", task="send"), progress=busy)

    cancelled = of_type(seed, Event.CANCELLED)
    assert len(cancelled) == len(set(cancelled)) == made.changed
    assert matching - taken == set(cancelled)


@pytest.mark.parametrize("where", ["list", "scheduled"])
def test_no_waiting_job_is_missed_while_jobs_before_it_leave(seed: Seed, where: str) -> None:
    """Checks one round, since a second round would find what the first round missed. All scheduled jobs are due
    together."""
    ids = [f"j{n:02}" for n in range(40)]
    seed.enqueue(*ids, delay_ms=0 if where == "list" else MINUTE)
    counting, seen = change("cancel", dry_run=True), set[str]()
    place = seed.client.run(seed.client.calls.bulk.begin("q"))
    waiting, is_last = set(ids), False

    while not is_last:
        step = seed.client.run(seed.client.calls.bulk.step(counting, place))
        place, is_last = step.place, step.is_last
        seen |= step.outcomes.keys()
        if where == "list":
            gone = [claim.id for claim in seed.claim(2).jobs]
        else:
            gone = sorted(waiting & seen)[:2] if len(waiting) > 20 else []
            seed.cancel(*gone)
        waiting -= set(gone)

    assert waiting
    assert waiting <= seen


# Kills.


class Killed(Exception):
    pass


def kill_after(seed: Seed, plan: Plan[Any], trips: int) -> None:
    """Run a plan for this number of round trips, and leave it unfinished, as a killed process does. Raises Killed."""
    exchange, left = seed.client._transport.exchange, iter(range(trips))

    def limited(*step: Any) -> Any:
        if next(left, None) is None:
            raise Killed
        return exchange(*step)

    seed.client._transport.exchange = limited  # type: ignore[method-assign]
    try:
        seed.client.run(plan)
    finally:
        seed.client._transport.exchange = exchange  # type: ignore[method-assign]


def cut_after(seed: Seed, plan: Plan[Any], trips: int) -> Any:
    """Run a plan. After this number of round trips, the server carries out one more, but its replies are lost. Raises
    Killed."""
    exchange, left = seed.client._transport.exchange, iter(range(trips))

    def lossy(*step: Any) -> Any:
        answers = exchange(*step)
        if next(left, None) is None:
            raise Killed
        return answers

    seed.client._transport.exchange = lossy  # type: ignore[method-assign]
    try:
        return seed.client.run(plan)
    finally:
        seed.client._transport.exchange = exchange  # type: ignore[method-assign]


CASES: dict[str, tuple[Callable[[], BulkChange], Event, int]] = {
    "cancel": (lambda: change("cancel", task="send"), Event.CANCELLED, 20),
    "edit": (lambda: change("edit", Change(due="+120000"), task="send"), Event.EDITED, 20),
    "requeue": (lambda: change("requeue", task="dies"), Event.REQUEUED, 12),
    "prune": (lambda: change("prune", task="dies"), Event.PRUNED, 12),
}


@pytest.mark.parametrize("verb", CASES)
@pytest.mark.parametrize("trips", [1, 6])
def test_a_bulk_change_that_is_killed_and_resumed_changes_each_job_once(
    seed: Seed, verb: str, trips: int
) -> None:
    """The change is resumed after each kill, at the last place that its client noted."""
    make, event, expected = CASES[verb]
    fill(seed)
    for n in range(12):
        seed.dead(f"d{n}", task="dies")
    place = seed.client.run(seed.client.calls.bulk.begin("q"))
    kills = 0

    while True:
        seed.advance(10)
        places = [place]
        try:
            kill_after(
                seed, seed.client.calls.bulk.run(make(), place, places.append), trips + kills
            )
        except Killed:
            kills += 1
            # What a client noted last, as the text that it may have printed.
            place = BulkPlace.parse(str(places[-1]))
            continue
        break

    changed = of_type(seed, event)
    assert len(changed) == len(set(changed)) == expected
    assert kills > 0
    assert {f"bulk {place.id}"} == {entry.why for entry in entries_of(seed, event)}


def test_the_limit_of_a_change_holds_for_a_change_that_is_killed_and_resumed(seed: Seed) -> None:
    fill(seed)
    limited = change("cancel", task="send", limit=7)
    places: list[BulkPlace] = []

    def stop(place: BulkPlace) -> None:
        places.append(place)
        if place.changed:
            raise Killed

    with pytest.raises(Killed):
        run(seed, limited, progress=stop)
    made = run(seed, limited, BulkPlace.parse(str(places[-1])))

    assert made.changed == len(of_type(seed, Event.CANCELLED)) == 7


LIMITED: dict[str, Callable[[], BulkChange]] = {
    "cancel": lambda: change("cancel", task="send", limit=7),
    "cancel-of-running": lambda: change("cancel", states=("running",), limit=7),
    "edit": lambda: change("edit", Change(due="+120000"), task="send", limit=7),
    "requeue": lambda: change("requeue", task="dies", limit=7),
    "prune": lambda: change("prune", task="dies", limit=7),
}


@pytest.mark.parametrize("what", LIMITED)
@pytest.mark.parametrize("notes", ["each-place", "no-place"])
def test_jobs_changed_by_a_call_whose_answer_was_lost_count_for_the_limit_of_the_bulk_change(
    seed: Seed, what: str, notes: str
) -> None:
    """The connection breaks again and again, after the server has carried out the commands. More jobs match than the
    limit.

    With ``no-place``, the caller forgets its progress and begins again at the first place each time.
    """
    fill(seed)
    for n in range(12):
        seed.dead(f"d{n}", task="dies")
    if "running" in what:
        seed.enqueue(*(f"r{n}" for n in range(12)), priority="critical")
        seed.claim(12)
    before = len(seed.entries())
    place = seed.client.run(seed.client.calls.bulk.begin("q"))
    numbers: list[int] = []
    made, kills = None, 0

    def note(reached: BulkPlace) -> None:
        nonlocal place
        numbers.append(reached.changed)
        place = place if notes == "no-place" else BulkPlace.parse(str(reached))

    while made is None:
        seed.advance(10)
        plan = seed.client.calls.bulk.run(LIMITED[what](), place, note)
        try:
            # Later each time, so that the connection is cut after each step of the plan.
            made = cut_after(seed, plan, kills)
        except Killed:
            kills += 1

    changed = [job.job_id for entry in seed.entries()[before:] for job in entry.jobs]
    assert len(changed) == len(set(changed)) == 7
    assert made.changed == 7
    assert max(numbers) == 7
    assert kills > 2


def test_jobs_of_a_lost_answer_count_for_the_limit_though_earlier_calls_changed_no_job(
    seed: Seed,
) -> None:
    """The first calls find only jobs that cannot be edited, since they would become ready after their deadlines.

    The connection breaks again and again after the server has carried out the commands.
    """
    seed.enqueue(*(f"late-{n}" for n in range(12)))
    seed.enqueue(*(f"short-{n}" for n in range(9)), expires_in_ms=1_000)
    limited = change("edit", Change(due="+5000"), limit=6)
    place = seed.client.run(seed.client.calls.bulk.begin("q"))
    made, kills = None, 0

    def note(reached: BulkPlace) -> None:
        nonlocal place
        place = reached

    while made is None:
        try:
            made = cut_after(seed, seed.client.calls.bulk.run(limited, place, note), 1 + kills % 4)
        except Killed:
            kills += 1
            assert kills < 200

    edited = of_type(seed, Event.EDITED)
    assert len(edited) == len(set(edited)) == made.changed == 6


# What each call may cost.


def test_a_call_changes_at_most_one_page_and_is_followed_by_a_pause(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed.enqueue(*[f"j{n:02}" for n in range(23)])
    sizes: list[int] = []
    original = Admin.cancel

    def counted(self: Admin, queue: str, ids: Any, **named: Any) -> Plan[dict[str, str]]:
        sizes.append(len(ids))
        return (yield from original(self, queue, ids, **named))

    monkeypatch.setattr(Admin, "cancel", counted)
    times = iter(range(0, 10_000, 2))
    monkeypatch.setattr(seed.client.calls.bulk._delivery.asking, "clock", lambda: next(times) / 10)

    steps, pauses, reply = seed.client.calls.bulk.run(change("cancel")), [], None
    with pytest.raises(StopIteration):
        while True:
            step = steps.send(reply)
            if isinstance(step, Pause):
                pauses.append(step.seconds)
                reply = None
            else:
                reply = seed.client._transport.exchange(*step)

    assert sizes == [5, 5, 5, 5, 3]
    assert pauses
    assert all(0 < seconds <= 1 for seconds in pauses)


def test_a_filter_that_names_neither_headers_nor_arguments_reads_no_json_of_jobs(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(seed)
    monkeypatch.setattr(matches, "specs_of", lambda *_: pytest.fail("the JSON was read"))
    monkeypatch.setattr(matches, "errors_of", lambda *_: pytest.fail("errors were read"))

    assert 20 == run(seed, change("cancel", task="send", dry_run=True)).matched


# What is refused.


@pytest.mark.parametrize(
    ("verb", "given", "says"),
    [
        ("cancel", {"states": ("dead",)}, "cancel changes no others"),
        ("cancel", {"states": ("cancelling",)}, "cancel changes no others"),
        ("cancel", {"error": "X"}, "only dead jobs have an error"),
        ("requeue", {"states": ("ready",)}, "requeue changes no others"),
        ("prune", {"due": 5}, "only scheduled jobs are due"),
        ("edit", {"states": ("running",)}, "edit changes no others"),
        ("edit", {"limit": 0}, "must be a whole number"),
        ("cancel", {"reason": "x" * WHY_MAX}, "must have at most"),
    ],
)
def test_a_change_that_can_match_no_job_or_has_an_invalid_option_is_refused(
    verb: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        change(verb, **given)


@pytest.mark.parametrize(
    "text",
    ["", "x", "0/1/0/0/0/0/0/0/", "zz" * 8 + "/1/0/0/0/0/0/0/", "a" * 16 + "/9/0/0/0/0/0/0/"],
)
def test_a_position_that_no_interrupted_change_returned_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="must be the place"):
        BulkPlace.parse(text)


def test_the_position_of_another_kind_of_change_is_refused(seed: Seed) -> None:
    place = BulkPlace.parse("a" * 16 + "/1/3/0/0/0/0/0/")

    with pytest.raises(InvalidOption, match="a change like this"):
        run(seed, change("requeue", states=("dead",)), place)


def test_a_change_in_a_missing_queue_finds_no_job_and_creates_no_queue(seed: Seed) -> None:
    nowhere = BulkChange(VERBS["cancel"], Filter(queue="nowhere", task="send"))

    assert 0 == run(seed, nowhere).matched
    assert [] == seed.client.run(seed.client.calls.reads.queues())


def test_parked_jobs_count_as_waiting_and_are_cancelled_page_by_page(seed: Seed) -> None:
    for n in range(7):
        seed.parked(f"p{n}")
        seed.advance(1)

    assert {"parked": 7} == run(seed, change("cancel", dry_run=True)).outcomes
    assert 0 == run(seed, change("edit", Change("high"))).matched
    assert {"cancelled": 7} == run(seed, change("cancel", states=("parked",))).outcomes
    assert {f"p{n}" for n in range(7)} == set(of_type(seed, Event.CANCELLED))
