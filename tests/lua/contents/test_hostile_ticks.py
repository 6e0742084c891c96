"""Schedules under faults: suspended workers, clocks that are set to another time, a full log, and a full server."""

from collections.abc import Callable

import pytest

from rq_core.errors import AuditBacklogFull, QueueFull
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import (
    Declaration,
    Instant,
    ScheduleChange,
    Told,
    parse_changes,
    tick,
)
from rq_core.protocol.engine.plan import Call
from rq_core.scripts.script import Script
from tests.kit.clock import timed
from tests.kit.seed import LEASE_MS, Seed
from tests.kit.snapshots import Snapshot
from tests.lua.contents.ticking import (
    EVERY_MS,
    HAND_MS,
    fire,
    judged,
    put,
    send,
    stored,
    told,
    until_due,
)

HOUR_MS = 3_600_000


def instants(seed: Seed) -> list[tuple[int, str, int]]:
    """Return the instants in the log as (instant in ms, outcome, number of earlier instants that were passed over)."""
    return [(each[3], each[6], each[7]) for each in told(seed)]


def test_a_worker_that_was_suspended_for_an_hour_fires_no_instant_a_second_time(
    seed: Seed,
) -> None:
    first = put(seed, every=10, overlap="allow").next_ms
    until_due(seed)
    in_hand = judged(send(seed).due, seed.now)
    seed.live(HOUR_MS)

    assert {"beat": Told("fired")} == fire(seed, worker="w-2")
    assert {"beat": Told("already")} == send(seed, *in_hand).told

    assert [(first + HOUR_MS, "fired", HOUR_MS // EVERY_MS)] == instants(seed)
    assert 1 == len(seed.claim().jobs)


def test_the_first_job_after_a_full_backlog_counts_the_instants_that_were_missed(
    seed: Seed,
) -> None:
    first = put(seed).next_ms
    seed.attach()
    seed.configure(backlog_max_jobs=1)
    for _ in range(3):
        handed = send(seed)
        seed.live(EVERY_MS - handed.now_ms % 10)
        handed = send(seed)
        with pytest.raises(AuditBacklogFull):
            send(seed, *judged(handed.due, handed.now_ms))
        assert first == stored(seed).next_ms

    seed.configure(backlog_max_jobs=1_000)
    seed.live(HAND_MS)

    assert {"beat": Told("fired")} == fire(seed)
    ((nominal, _, missed),) = instants(seed)
    assert missed == (nominal - first) // EVERY_MS >= 2


def test_a_full_server_refuses_schedules_and_instants_without_losing_them(seed: Seed) -> None:
    first = put(seed).next_ms
    until_due(seed)
    handed = send(seed)
    seed.live(EVERY_MS)
    before = seed.snapshot()

    seed.control.config_set("maxmemory", "1")
    try:
        with pytest.raises(QueueFull):
            send(seed, *judged(handed.due, handed.now_ms))
        with pytest.raises(QueueFull):
            put(seed, "other")
        with pytest.raises(QueueFull):
            put(seed, every=60)
        # A claim comes through, and tells the worker that schedules are due.
        assert seed.claim().ticks
    finally:
        seed.control.config_set("maxmemory", "0")

    assert before["schedules"] == seed.snapshot()["schedules"]
    assert {"beat": Told("fired")} == fire(seed)
    assert [(first + EVERY_MS, "fired", 1)] == instants(seed)


@pytest.mark.parametrize("source", ["code", "live"])
def test_no_instant_is_fired_twice_if_the_clock_jumps_ahead_and_back(
    seed: Seed, source: str
) -> None:
    first = put(seed, source=source).next_ms
    until_due(seed)
    fire(seed)
    seed.complete(*seed.claim().jobs)

    seed.clock.set(seed.now + HOUR_MS)
    assert {"beat": Told("fired")} == fire(seed)
    seed.complete(*seed.claim().jobs)
    seed.clock.set(seed.now - HOUR_MS)
    put(seed, source=source)
    assert {} == send(seed).due
    until_due(seed)
    fire(seed)

    ahead = first + HOUR_MS
    assert [
        (first, "fired", 0),
        (ahead, "fired", HOUR_MS // EVERY_MS - 1),
        (ahead + EVERY_MS, "fired", 0),
    ] == instants(seed)


def test_a_schedule_is_not_delayed_if_the_clock_is_set_back_before_an_instant(
    seed: Seed,
) -> None:
    """A worker that starts declares its schedules. The declaration moves the next instant to the earlier time of the
    clock."""
    put(seed)
    seed.clock.set(seed.now - HOUR_MS)

    put(seed)

    assert stored(seed).due_ms <= seed.now + EVERY_MS
    until_due(seed)
    assert {"beat": Told("fired")} == fire(seed)


def test_workers_whose_time_zones_differ_fire_each_instant_once(seed: Seed) -> None:
    """One worker has old time zone data, and reports another next instant. The other workers continue from there."""
    first = put(seed).next_ms
    until_due(seed)
    send(seed)
    old, later = Instant("beat", 1, first, first, first + 3_500, 0), first + 3_500
    new = Instant("beat", 1, first, first, first + EVERY_MS, 0)

    assert {"beat": Told("fired")} == send(seed, old).told
    assert {"beat": Told("already")} == send(seed, new, worker="w-2").told
    assert later == stored(seed).next_ms
    seed.live(EVERY_MS)
    fire(seed, worker="w-2")

    assert [(first, 0), (first + EVERY_MS, 0)] == [(n, m) for n, _, m in instants(seed)]


def test_a_schedule_can_fire_a_job_of_64_kib(seed: Seed) -> None:
    args = '{"text":"' + "x" * 65_536 + '"}'
    put(seed, job=seed.job("-", task="ping", args_json=args))
    until_due(seed)

    assert {"beat": Told("fired")} == fire(seed)

    (claim,) = seed.claim().jobs
    assert args in claim.spec


def as_script(name: str) -> Script:
    """Return the script in its form for EVALSHA. In this form it remembers nothing between calls."""
    made = timed(name).instead
    assert made is not None
    return made


def story(redis_url: str, scripts: Callable[[str], Script]) -> list[Snapshot]:
    """Return a snapshot of the queue after each step of a history with three schedules."""
    with Seed(redis_url, scripts=scripts) as seed:
        seed.control.flushall()
        seed.clock.set(seed.now)
        found = []
        put(seed, "beat", "other")
        put(seed, "queued", every=10, overlap="queue", source="live")
        for _ in range(3):
            until_due(seed, more_ms=EVERY_MS)
            assert seed.claim().ticks
            fire(seed)
            found.append(seed.snapshot())
            seed.complete(*seed.claim().jobs)
        for what in ("pause", "resume", "remove"):
            seed.client.run(seed.client.calls.schedules.change(seed.queue, "other", what))
            found.append(seed.snapshot())
    return found


def test_functions_and_scripts_write_the_same_schedules(
    redis_url: str,
) -> None:
    functions, scripts = story(redis_url, timed), story(redis_url, as_script)

    assert functions == scripts
    assert any(each["ticks"] for each in functions)


def test_a_due_schedule_is_given_to_only_one_of_several_workers_that_ask(seed: Seed) -> None:
    """The claims of several workers have reported due schedules. The workers ask for them one after another."""
    put(seed, *(f"s-{n}" for n in range(6)), every=1)
    seed.live(1_000)

    handed = [seed.client.run(tick(seed.queue, f"w-{n}", hand_max=4)).due for n in range(3)]

    assert [4, 2, 0] == [len(each) for each in handed]
    assert not handed[0].keys() & handed[1].keys()


@pytest.mark.parametrize("what", ["put", "resume"])
def test_a_schedule_change_is_refused_if_its_next_instant_has_passed(seed: Seed, what: str) -> None:
    """The caller or its clock is slow. The answer has the time after which the next instant must be."""
    put(seed)
    until_due(seed)
    fire(seed)
    last = stored(seed).last_ms
    seed.client.run(seed.client.calls.schedules.change(seed.queue, "beat", "pause"))
    before = stored(seed)
    seed.live(EVERY_MS)
    made = Declaration.of(seed.job("-", task="ping"), recurrence("beat", every=7))
    args = {"by": "x", "why": "", "source": "live", "spec_max": 0, "what": what}

    for passed in (last, seed.now):
        record = ("beat", -1, passed, passed, made.rule.to_json(), made.packed)
        call = Call("schedule", seed.queue, args, parse_changes, (record,))
        answer = seed.client.run(call)["beat"]
        assert ScheduleChange("late", before.version, seed.now) == answer

    assert before == stored(seed)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_a_job_that_dies_as_poison_lets_its_schedule_fire_again(seed: Seed, overlap: str) -> None:
    put(seed, job=seed.job("-", task="ping", losses=1), every=10, overlap=overlap)
    until_due(seed)
    fire(seed)
    (claim,) = seed.claim().jobs
    seed.live(LEASE_MS + 1)
    assert () == seed.claim().jobs
    assert (seed.state(claim.id) or "").startswith("dead ")

    assert {"beat": Told("fired")} == fire(seed)

    assert 1 == len(seed.claim().jobs)
