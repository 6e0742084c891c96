"""Instants of schedules. A claim reports due schedules, one worker gets them, and each instant is fired once."""

from collections.abc import Sequence
from typing import Any

import pytest

from rq_core.errors import AuditBacklogFull
from rq_core.model.schedule import Schedule
from rq_core.protocol.calls.schedules import Instant, Told, tick
from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed
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


def ids(jobs: Sequence[Any]) -> list[str]:
    return [job.id for job in jobs]


def test_a_claim_gives_a_due_schedule_to_one_worker(seed: Seed) -> None:
    put(seed)
    due = stored(seed).due_ms
    first = seed.claim()
    seed.clock.set(due)

    second, third = seed.claim(), seed.claim()

    assert [(False, due), (True, due + 1_000), (False, due + 1_000)] == [
        (each.ticks, each.next_due_ms) for each in (first, second, third)
    ]
    assert not second.more
    seed.advance(1_000)
    seed.enqueue("a", "b")
    fourth = seed.claim(1)
    assert (True, True) == (fourth.ticks, fourth.more)


def test_the_script_turn_gives_a_due_schedule_to_one_worker(seed: Seed) -> None:
    put(seed)
    until_due(seed)

    assert seed.turn().ticks


def test_a_schedule_that_one_worker_got_is_given_to_another_worker_after_five_seconds(
    seed: Seed,
) -> None:
    put(seed)
    until_due(seed)

    assert ["beat"] == list(send(seed).due)
    assert {} == send(seed, worker="w-2").due
    seed.advance(HAND_MS - 1)
    assert {} == send(seed, worker="w-2").due
    seed.advance(1)
    assert ["beat"] == list(send(seed, worker="w-2").due)


def test_a_reported_instant_enqueues_its_job_and_appends_its_event(seed: Seed) -> None:
    schedule = put(seed)
    until_due(seed, more_ms=3)

    assert {"beat": Told("fired")} == fire(seed)

    at, following = schedule.next_ms, schedule.next_ms + EVERY_MS
    job_id = f"tick-beat-{at}"
    assert [(job_id, "beat", 1, at, at, following, "fired", 0)] == told(seed)
    types = [e["type"] for _, e in seed.snapshot()["outbox"]]
    assert ["enqueued", "ticked"] == types[-2:]
    found = stored(seed)
    assert (following, at) == (found.next_ms, found.last_ms)
    (claim,) = seed.claim().jobs
    assert (job_id, '{"task":"ping","args":{}}') == (claim.id, claim.spec)


def test_two_workers_that_report_the_same_instant_enqueue_one_job(seed: Seed) -> None:
    put(seed)
    until_due(seed)
    handed = send(seed)
    instants = judged(handed.due, seed.now)

    assert {"beat": Told("fired")} == send(seed, *instants).told
    assert {"beat": Told("already")} == send(seed, *instants, worker="w-2").told

    assert 1 == len(told(seed))


def test_an_instant_of_an_older_version_of_a_schedule_is_not_accepted(seed: Seed) -> None:
    put(seed)
    until_due(seed)
    handed = send(seed)
    instants = judged(handed.due, seed.now)
    put(seed, every=60)

    assert {"beat": Told("already")} == send(seed, *instants).told
    assert [] == told(seed)


def test_an_instant_that_was_computed_before_a_change_is_not_accepted(seed: Seed) -> None:
    """The schedule has the same next instant before and after the change."""
    before = put(seed)
    for what in ("pause", "resume"):
        seed.client.run(seed.client.calls.schedules.change(seed.queue, "beat", what))
    after = until_due(seed)
    assert before.next_ms == after.next_ms
    instant = Instant("beat", 1, after.next_ms, after.next_ms, after.next_ms + EVERY_MS, 0)

    assert {"beat": Told("already")} == send(seed, instant).told
    assert {"beat": Told("fired")} == send(seed, instant._replace(version=3)).told


@pytest.mark.parametrize("what", ["pause", "remove"])
def test_an_instant_of_a_paused_or_removed_schedule_is_not_accepted(seed: Seed, what: str) -> None:
    schedule = put(seed)
    until_due(seed)
    instants = judged(send(seed).due, seed.now)
    seed.client.run(seed.client.calls.schedules.change(seed.queue, "beat", what))
    (instant,) = instants

    answer = send(seed, instant._replace(version=schedule.version + 1))

    assert {"beat": Told("already")} == answer.told
    assert [] == told(seed)
    assert {"none": Told("gone")} == send(seed, instant._replace(name="none")).told


def test_a_worker_with_a_fast_clock_fires_no_instant_early(seed: Seed) -> None:
    schedule = put(seed)
    seed.clock.set(schedule.due_ms - 1)
    at = schedule.next_ms
    instant = Instant("beat", 1, at, at, at + EVERY_MS, 0)

    assert {"beat": Told("early")} == send(seed, instant).told
    assert {"beat": Told("early")} == send(seed, instant._replace(fired=0)).told
    assert [] == told(seed)


def test_an_instant_that_is_reported_before_its_spread_has_passed_is_refused_as_early(
    seed: Seed,
) -> None:
    schedule = put(seed, every=100, spread=90)
    shift = schedule.due_ms - schedule.next_ms
    at = schedule.next_ms
    instant = Instant("beat", 1, at, at, at + 100_000, 0)
    assert shift > 0
    seed.clock.set(schedule.due_ms - 1)

    assert {"beat": Told("early")} == send(seed, instant).told
    seed.advance(1)
    assert {"beat": Told("fired")} == send(seed, instant).told

    assert at + 100_000 + shift == stored(seed).due_ms
    assert [at, at + shift, at + 100_000] == list(told(seed)[0][3:6])


@pytest.mark.parametrize(("fired", "following"), [(-1, 1), (1, 1), (2, 1), (0, 0), (0, -1)])
def test_instants_that_are_out_of_order_are_refused(seed: Seed, fired: int, following: int) -> None:
    schedule = until_due_of(seed)
    at = schedule.next_ms
    instant = Instant("beat", 1, at, at + fired * 1_000, at + following * 1_000, 0)

    assert {"beat": Told("refused")} == send(seed, instant).told
    assert [] == told(seed)
    assert schedule == stored(seed)


def until_due_of(seed: Seed) -> Schedule:
    put(seed)
    return until_due(seed, more_ms=5_000)


def test_one_job_is_enqueued_for_all_instants_that_have_passed(seed: Seed) -> None:
    schedule = put(seed)
    until_due(seed, more_ms=3 * EVERY_MS + 1)

    assert {"beat": Told("fired")} == fire(seed)

    at = schedule.next_ms + 3 * EVERY_MS
    assert [(f"tick-beat-{at}", "beat", 1, at, at, at + EVERY_MS, "fired", 3)] == told(seed)


def test_an_instant_later_than_the_grace_is_logged_as_missed(seed: Seed) -> None:
    schedule = put(seed, every=100, catch_up="skip")
    until_due(seed, more_ms=60_001)

    assert {"beat": Told("missed")} == fire(seed)

    at = schedule.next_ms
    assert [(f"tick-beat-{at}", "beat", 1, at, at, at + 100_000, "missed", 1)] == told(seed)
    assert () == seed.claim().jobs
    assert (at, at + 100_000) == (stored(seed).last_ms, stored(seed).next_ms)


def test_the_event_of_an_instant_counts_the_instants_that_were_missed_before_it(seed: Seed) -> None:
    put(seed)
    until_due(seed)
    fire(seed)
    assert None is seed.meta("schedules_missed")
    until_due(seed, more_ms=35_000)
    fire(seed)
    assert "3" == seed.meta("schedules_missed")
    put(seed, "short", every=100, grace=1)
    until_due(seed, "short", more_ms=2_000)
    fire(seed)

    missed = sum(row[7] for row in told(seed))
    assert str(missed) == seed.meta("schedules_missed")


def test_a_missed_instant_is_not_fired_later(seed: Seed) -> None:
    put(seed, every=100, catch_up="skip")
    until_due(seed, more_ms=60_001)
    fire(seed)
    seed.clock.set(seed.now - 3_600_000)
    last = stored(seed).last_ms

    put(seed, every=100, catch_up="skip")
    put(seed, every=50)

    assert stored(seed).next_ms > last


def test_a_schedule_whose_rule_a_worker_cannot_compute_is_due_again_after_a_minute(
    seed: Seed,
) -> None:
    put(seed)
    schedule = until_due(seed)
    send(seed)

    answer = send(seed, Instant("beat", 1, schedule.next_ms, 0, 0, 0))

    assert {"beat": Told("later")} == answer.told
    assert {"beat": seed.now + 60_000} == seed.snapshot()["ticks"]


def test_a_damaged_job_delays_no_other_schedule(seed: Seed) -> None:
    put(seed, "a", "b")
    until_due(seed, "a", more_ms=EVERY_MS)
    seed.control.hset(seed.keys("schedules"), "a|job", "rubbish")

    assert {"a": Told("later"), "b": Told("fired")} == fire(seed)


def test_a_schedule_that_no_code_declares_any_longer_stops(seed: Seed) -> None:
    put(seed, every=3_600)
    seed.live(3 * 3_600_000 - 1)
    assert {"beat": Told("fired")} == fire(seed)
    until_due(seed)

    assert {"beat": Told("undeclared")} == fire(seed)

    assert ("undeclared", 2) == (stored(seed).state, stored(seed).version)
    assert {} == seed.snapshot()["ticks"]
    assert [(None, "undeclared", 0)] == [each[5:8] for each in told(seed)[1:]]
    assert "on" == put(seed, every=3_600).state


def test_a_schedule_that_an_operator_set_needs_no_declaration_by_code(seed: Seed) -> None:
    put(seed, every=3_600, source="live")
    seed.live(4 * 3_600_000)

    assert {"beat": Told("fired")} == fire(seed)


# Overlaps.


def test_a_schedule_enqueues_no_job_while_its_earlier_job_is_alive(seed: Seed) -> None:
    put(seed)
    until_due(seed)
    fire(seed)
    first = seed.snapshot()["schedules"]["beat"]
    (claim,) = seed.claim().jobs
    until_due(seed)

    assert {"beat": Told("skipped", claim.id)} == fire(seed)

    assert "skipped" == told(seed)[1][6]
    assert claim.id == told(seed)[1][8]
    assert first != seed.snapshot()["schedules"]["beat"]
    seed.complete(claim)
    until_due(seed)
    assert {"beat": Told("fired")} == fire(seed)


def test_a_schedule_may_allow_its_jobs_to_overlap(seed: Seed) -> None:
    put(seed, every=10, overlap="allow")
    for _ in range(3):
        until_due(seed)
        assert {"beat": Told("fired")} == fire(seed)

    assert 3 == len(seed.claim().jobs)


def test_overlap_queue_lets_one_job_of_a_schedule_run_and_one_wait(seed: Seed) -> None:
    put(seed, every=10, overlap="queue")
    until_due(seed)
    fire(seed)
    (running,) = seed.claim().jobs
    until_due(seed)

    assert {"beat": Told("fired")} == fire(seed)
    waiting = told(seed)[1][0]
    until_due(seed)
    assert {"beat": Told("skipped", waiting)} == fire(seed)

    assert () == seed.claim().jobs
    seed.complete(running)
    assert [waiting] == ids(seed.claim().jobs)


def test_overlap_replace_replaces_the_waiting_job_and_asks_the_running_job_to_stop(
    seed: Seed,
) -> None:
    put(seed, every=10, overlap="replace")
    until_due(seed)
    fire(seed)
    (running,) = seed.claim().jobs
    until_due(seed)

    assert {"beat": Told("fired")} == fire(seed)
    assert (seed.state(running.id) or "").startswith("cancelling ")
    until_due(seed)
    assert {"beat": Told("fired")} == fire(seed)

    first, second, third = (each[0] for each in told(seed))
    assert running.id == first
    assert seed.state(second) is None
    seed.fail(running)
    assert [third] == ids(seed.claim().jobs)


@pytest.mark.parametrize("overlap", ["skip", "queue", "replace"])
def test_the_end_of_a_job_lets_its_schedule_enqueue_the_next_job(seed: Seed, overlap: str) -> None:
    put(seed, every=10, overlap=overlap)
    for verdict in ("final", "success", "final"):
        until_due(seed)
        assert {"beat": Told("fired")} == fire(seed)
        (claim,) = seed.claim().jobs
        if verdict == "final":
            seed.fail(claim, verdict=verdict)
        else:
            seed.complete(claim)


# Runs that an operator asks for.


def run(seed: Seed, name: str = "beat") -> Told:
    answer = seed.client.run(seed.client.calls.schedules.run(seed.queue, name, why="because"))
    assert_consistent(seed.snapshot())
    return answer


def test_an_extra_run_of_a_schedule_changes_no_instant(seed: Seed) -> None:
    before = put(seed)

    assert Told("run") == run(seed)

    assert before == stored(seed)
    (claim,) = seed.claim().jobs
    assert f"tick-beat-{seed.now}" == claim.id
    assert [(claim.id, "beat", 1, seed.now, seed.now, before.next_ms, "run", 0)] == told(seed)
    seed.advance(1)
    assert Told("not_run", claim.id) == run(seed)
    assert Told("gone") == run(seed, "none")


def test_a_paused_schedule_can_be_run_once(seed: Seed) -> None:
    put(seed)
    seed.client.run(seed.client.calls.schedules.change(seed.queue, "beat", "pause"))

    assert Told("run") == run(seed)
    assert None is told(seed)[0][5]


# Many, and what is refused.


def test_due_schedules_that_exceed_one_call_are_given_to_another_worker_at_once(seed: Seed) -> None:
    names = [f"s-{n}" for n in range(10)]
    put(seed, *names, every=1)
    seed.live(1_000)
    seed.claim()

    first = send(seed, hand_max=4)
    assert seed.claim().ticks
    second = send(seed, worker="w-2", hand_max=4)
    third = send(seed, worker="w-2", hand_max=4)

    assert sorted(names) == sorted([*first.due, *second.due, *third.due])
    assert seed.now + HAND_MS == seed.snapshot()["scheduled"]["tick|"]


def test_due_schedules_are_given_to_a_worker_again_after_the_backlog_was_full(seed: Seed) -> None:
    put(seed)
    until_due(seed)
    seed.attach()
    handed = send(seed)
    seed.configure(backlog_max_jobs=1)

    with pytest.raises(AuditBacklogFull):
        send(seed, *judged(handed.due, seed.now))

    seed.configure(backlog_max_jobs=1_000)
    seed.advance(HAND_MS)
    assert {"beat": Told("fired")} == fire(seed)


def test_a_paused_queue_accepts_the_jobs_of_its_schedules(seed: Seed) -> None:
    put(seed)
    seed.configure(paused=1)
    until_due(seed)

    assert seed.claim().ticks
    assert {"beat": Told("fired")} == fire(seed)
    assert () == seed.claim().jobs


def test_two_schedules_fire_separately_though_one_name_begins_with_the_other(seed: Seed) -> None:
    put(seed, "a", "a-1")
    until_due(seed, "a", more_ms=EVERY_MS)

    assert {"a": Told("fired"), "a-1": Told("fired")} == fire(seed)


def test_a_queue_that_remembers_ids_accepts_the_jobs_of_its_schedules(seed: Seed) -> None:
    seed.enqueue("kept", remember_ms=60_000)
    put(seed, job=seed.job("-", task="ping", keep_ms=60_000))
    until_due(seed)

    assert {"beat": Told("fired")} == fire(seed)
    (claim,) = [each for each in seed.claim().jobs if each.id != "kept"]
    assert claim.spec.startswith('{"keep":1,')


def test_a_report_that_is_sent_again_gets_the_same_answer_and_no_further_schedules(
    seed: Seed,
) -> None:
    """The worker reports two schedules twice. The log still has two instants."""
    put(seed, "a", "b")
    until_due(seed, "a", more_ms=EVERY_MS)
    call = tick(seed.queue, "w-1", judged(send(seed).due, seed.now))
    begun = seed.calls.delivery.begin(call)
    run = seed.control.execute_command

    first = run(*begun.command)  # type: ignore[no-untyped-call]
    second = run(*begun.command)  # type: ignore[no-untyped-call]

    assert first == second
    assert 2 == len(told(seed))
