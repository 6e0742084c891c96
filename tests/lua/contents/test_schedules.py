"""Schedules: what Redis and the log have about them, and which clients may change them."""

import json
from typing import Any

import pytest

from rq_core.errors import InvalidOption, Refused
from rq_core.model.recurrence import Recurrence, recurrence
from rq_core.model.schedule import Schedule, job_digest
from rq_core.protocol.calls.schedules import Declaration, Instant, ScheduleChange, Told, tick
from rq_core.protocol.engine.plan import Call
from tests.kit.consistency import assert_consistent
from tests.kit.seed import START_MS, Seed
from tests.lua.contents.ticking import fire

HOUR = 3_600_000
EVERY_MS = 10_000


def declaration(seed: Seed, name: str = "beat", job: Any = None, **rule: Any) -> Declaration:
    rule = rule or {"every": 10}
    return Declaration.of(job or seed.job("-", task="ping"), recurrence(name, **rule))


def rule(name: str = "beat", **options: Any) -> Recurrence:
    return recurrence(name, **(options or {"every": 10}))


def put(seed: Seed, *declarations: Declaration, source: str = "code", **how: Any) -> Any:
    made = declarations or (declaration(seed),)
    changes = seed.client.run(
        seed.client.calls.schedules.put(seed.queue, made, source=source, **how)
    )
    assert_consistent(seed.snapshot())
    return {name: change.outcome for name, change in changes.items()}


def change(seed: Seed, what: str, name: str = "beat", **how: Any) -> str:
    made = seed.client.run(seed.client.calls.schedules.change(seed.queue, name, what, **how))
    assert_consistent(seed.snapshot())
    return str(made.outcome)


def stored(seed: Seed, name: str = "beat") -> Schedule | None:
    return seed.client.run(seed.client.calls.schedules.stored(seed.queue)).get(name)


def ticks(seed: Seed) -> tuple[dict[str, float], float | None]:
    snapshot = seed.snapshot()
    return snapshot["ticks"], snapshot["scheduled"].get("tick|")


def told(seed: Seed) -> list[tuple[Any, ...]]:
    outbox = seed.snapshot()["outbox"]
    return [tuple(json.loads(e["data"])) for _, e in outbox if e["type"] == "schedule_changed"]


def test_the_stored_entry_of_a_schedule_has_a_line_and_a_rule_and_a_packed_job(seed: Seed) -> None:
    due = rule().next_after(START_MS)

    assert {"beat": "changed"} == put(seed)

    assert {
        "beat": f"on v=1 next={due} due={due} last=0 from=code seen={START_MS} was=\n"
        '{"every_ms":10000,"overlap":"skip","catch_up":"latest"}',
        "beat|job": '[2,0,"task=ping","\\"ping\\",\\"normal\\",3,3,\\"","",0,{"unique":"keep"}]\n\n'
        '44136fa355b3678a1146ad16f7e8649e ~/beat\n{"task":"ping","args":{}}',
    } == seed.snapshot()["schedules"]
    assert ({"beat": due}, due) == ticks(seed)
    assert "1" == seed.meta("schedules")


def test_a_spread_delays_each_instant_by_a_time_that_depends_on_the_name_of_the_schedule(
    seed: Seed,
) -> None:
    said = {"cron": "0 8 * * *", "spread": 900}
    put(seed, declaration(seed, **said))

    found = stored(seed)

    assert found is not None
    assert rule(**said).shift_ms == found.due_ms - found.next_ms > 0
    assert {"beat": found.due_ms} == ticks(seed)[0]


def test_a_repeated_declaration_of_a_schedule_changes_nothing(seed: Seed) -> None:
    put(seed)

    assert {} == seed.changes(lambda: put(seed))
    assert {"beat": "same"} == put(seed)


def test_a_repeated_declaration_of_a_schedule_is_recorded_at_most_twice_an_hour(seed: Seed) -> None:
    put(seed)
    before = stored(seed)
    assert before is not None
    seed.live(HOUR // 2)

    put(seed)

    after = stored(seed)
    assert after == before._replace(seen_ms=seed.now)
    assert 1 == len(told(seed))


def test_a_changed_schedule_gets_a_new_version_and_fires_no_past_instant(
    seed: Seed,
) -> None:
    put(seed)
    seed.live(3 * EVERY_MS)

    assert {"beat": "changed"} == put(seed, declaration(seed, every=60))

    found = stored(seed)
    assert found is not None
    assert (2, rule(every=60).next_after(seed.now)) == (found.version, found.next_ms)
    assert 1 == len(found.was)


def test_an_older_definition_in_code_does_not_replace_a_newer_one(
    seed: Seed,
) -> None:
    put(seed)
    put(seed, declaration(seed, every=60))

    assert {"beat": "kept"} == put(seed)
    assert {"beat": "changed"} == put(seed, declaration(seed, every=70))
    assert {"beat": "kept"} == put(seed, declaration(seed, every=60))


def test_a_schedule_gets_a_new_version_if_the_code_declares_another_job(seed: Seed) -> None:
    put(seed)

    assert {"beat": "changed"} == put(
        seed, declaration(seed, job=seed.job("-", task="ping", args_json='{"n":1}'))
    )


def test_a_schedule_remembers_the_last_twenty_definitions_from_code(seed: Seed) -> None:
    for every in range(10, 33):
        put(seed, declaration(seed, every=every))

    found = stored(seed)

    assert found is not None
    assert 20 == len(found.was)
    assert {"beat": "kept"} == put(seed, declaration(seed, every=31))
    assert {"beat": "changed"} == put(seed, declaration(seed, every=10))


def test_a_declaration_does_not_replace_a_schedule_that_an_operator_set(seed: Seed) -> None:
    put(seed)

    assert {"beat": "changed"} == put(seed, declaration(seed, every=60), source="live")
    assert {"beat": "kept"} == put(seed)
    assert {"beat": "kept"} == put(seed, declaration(seed, every=70))


def test_a_live_change_that_names_an_old_version_of_its_schedule_is_refused(
    seed: Seed,
) -> None:
    put(seed)
    other = declaration(seed, every=60)

    assert {"beat": "conflict"} == put(seed, other, source="live", version=0)
    assert {"beat": "changed"} == put(seed, other, source="live", version=1)
    assert {"beat": "conflict"} == put(seed, declaration(seed), source="live", version=1)
    assert "conflict" == change(seed, "pause", version=1)
    assert "changed" == change(seed, "pause", version=2)


def test_a_paused_schedule_has_no_next_instant(seed: Seed) -> None:
    put(seed)

    assert "changed" == change(seed, "pause", why="migration")
    assert "same" == change(seed, "pause")

    assert ({}, None) == ticks(seed)
    found = stored(seed)
    assert found is not None
    assert ("paused", 2) == (found.state, found.version)


def test_a_resumed_schedule_fires_no_past_instant(seed: Seed) -> None:
    put(seed)
    change(seed, "pause")
    seed.live(5 * EVERY_MS + 1)

    assert "changed" == change(seed, "resume")
    assert "same" == change(seed, "resume")

    due = rule().next_after(seed.now)
    assert ({"beat": due}, due) == ticks(seed)


def test_a_declaration_that_changes_a_paused_schedule_leaves_the_schedule_paused(
    seed: Seed,
) -> None:
    put(seed)
    change(seed, "pause")

    assert {"beat": "changed"} == put(seed, declaration(seed, every=60))

    assert ({}, None) == ticks(seed)
    found = stored(seed)
    assert found is not None
    assert "paused" == found.state


def test_a_declaration_does_not_restore_a_schedule_that_an_operator_removed(seed: Seed) -> None:
    put(seed)

    assert "changed" == change(seed, "remove")
    assert "same" == change(seed, "remove")

    assert {"beat": "kept"} == put(seed)
    assert {"beat": "kept"} == put(seed, declaration(seed, every=60))
    assert ({}, None) == ticks(seed)
    assert "gone" == change(seed, "pause")
    assert "changed" == change(seed, "resume")
    assert {"beat": "same"} == put(seed)


@pytest.mark.slow
def test_a_schedule_that_code_still_declares_stays_removed_after_a_second_removal(
    seed: Seed,
) -> None:
    """An operator removes the schedule, and again four hours later. Code declares it every hour in between.

    Without the entry, the next worker would create the schedule again.
    """
    put(seed)
    change(seed, "remove")
    for _ in range(4):
        seed.live(HOUR)
        assert {"beat": "kept"} == put(seed)

    assert "same" == change(seed, "remove")
    assert {"beat": "kept"} == put(seed)

    seed.live(3 * HOUR + 1)
    assert "changed" == change(seed, "remove")
    assert None is stored(seed)


def test_a_schedule_continues_while_only_older_code_declares_it(seed: Seed) -> None:
    """A deploy was rolled back, so no code declares the newest definition any more."""
    put(seed)
    put(seed, declaration(seed, every=60))
    for _ in range(4):
        seed.live(HOUR)
        assert {"beat": "kept"} == put(seed)

    assert {"beat": Told("fired")} == fire(seed)

    found = stored(seed)
    assert found is not None
    assert ("on", rule(every=60).to_json()) == (found.state, found.rule)


def test_older_code_may_restart_a_schedule_that_has_stopped(seed: Seed) -> None:
    """No newer code has declared the schedule for three hours. The definition of the older code then applies."""
    put(seed, declaration(seed, every=50))
    put(seed, declaration(seed, every=60))
    put(seed, declaration(seed, every=70))
    seed.live(3 * HOUR + 1)
    assert {"beat": Told("undeclared")} == fire(seed)

    assert {"beat": "changed"} == put(seed, declaration(seed, every=60))

    found = stored(seed)
    assert found is not None
    assert ("on", "code", rule(every=60).to_json()) == (found.state, found.source, found.rule)
    # The newer code may come again, and the oldest may not replace it.
    assert {"beat": "changed"} == put(seed, declaration(seed, every=70))
    assert {"beat": "kept"} == put(seed, declaration(seed, every=60))


def test_a_released_schedule_keeps_the_operators_rule_until_code_declares_the_schedule_again(
    seed: Seed,
) -> None:
    put(seed)
    put(seed, declaration(seed, every=60), source="live")
    put(seed)

    assert "changed" == change(seed, "release")
    assert "same" == change(seed, "release")

    found = stored(seed)
    assert found is not None
    assert ("on", "released", 3) == (found.state, found.source, found.version)
    assert rule(every=60).to_json() == found.rule
    assert "released" == told(seed)[-1][6]
    assert {"beat": "changed"} == put(seed)
    assert {"beat": "same"} == put(seed)
    # What the operator had set was never in the code: the code may say it one day.
    assert {"beat": "changed"} == put(seed, declaration(seed, every=60))


def test_the_release_of_a_schedule_does_not_let_older_code_replace_newer_code(seed: Seed) -> None:
    put(seed)
    put(seed, declaration(seed, every=60), source="live")
    put(seed)
    put(seed, declaration(seed, every=70))
    change(seed, "release")

    assert {"beat": "kept"} == put(seed)
    assert {"beat": "changed"} == put(seed, declaration(seed, every=70))


def test_a_released_schedule_belongs_to_the_code_again_after_the_next_declaration(
    seed: Seed,
) -> None:
    put(seed)
    put(seed, source="live")
    change(seed, "release")

    assert {"beat": "changed"} == put(seed)

    found = stored(seed)
    assert found is not None
    assert "code" == found.source


def test_a_schedule_that_no_code_declares_cannot_be_released(seed: Seed) -> None:
    put(seed, source="live")

    assert "undeclared" == change(seed, "release")
    assert "gone" == change(seed, "release", "other")


def test_a_released_schedule_stops_if_no_code_declares_it(seed: Seed) -> None:
    put(seed)
    put(seed, declaration(seed, every=60), source="live")
    change(seed, "release")
    seed.live(3 * HOUR + 1)

    found = stored(seed)
    assert found is not None
    expected, now = found.next_ms, rule(every=60).latest(0, seed.now)
    assert now is not None
    record = Instant("beat", found.version, expected, now, now + 60_000, 5)
    answer = seed.client.run(tick(seed.queue, "w-1", [record]))

    assert "undeclared" == answer.told["beat"].outcome


def test_a_removed_schedule_that_an_operator_had_set_stays_removed_although_code_declares_it(
    seed: Seed,
) -> None:
    """Redis must remember the removal. Otherwise the next worker would declare the schedule again."""
    put(seed)
    put(seed, declaration(seed, every=60), source="live")

    assert "changed" == change(seed, "remove")

    assert {"beat": "kept"} == put(seed)
    assert ({}, None) == ticks(seed)
    assert "changed" == change(seed, "resume")
    found = stored(seed)
    assert found is not None
    assert ("live", rule(every=60).to_json()) == (found.source, found.rule)


def test_a_schedule_that_redis_lost_is_restored_with_a_later_version(seed: Seed) -> None:
    put(seed, declaration(seed, "other"))
    restore = seed.client.calls.schedules.restore
    last = seed.now + 5 * EVERY_MS

    def restored() -> ScheduleChange:
        lost = declaration(seed)
        return seed.client.run(restore(seed.queue, lost, 7, last, by="ada", why="lost"))

    assert ScheduleChange("changed", 8, rule().next_after(last) or 0) == restored()
    assert "conflict" == restored().outcome

    found = stored(seed)
    assert found is not None
    assert ("on", "live", 8) == (found.state, found.source, found.version)


def test_a_schedule_that_no_code_declares_is_forgotten_when_it_is_removed(seed: Seed) -> None:
    put(seed, declaration(seed, "live"), source="live")
    put(seed, declaration(seed, "code"))
    seed.live(3 * HOUR + 1)

    assert "changed" == change(seed, "remove", "live")
    assert "changed" == change(seed, "remove", "code")

    assert {} == seed.snapshot()["schedules"]
    assert ({}, None) == ticks(seed)
    assert "gone" == change(seed, "remove", "live")
    assert "gone" == change(seed, "resume", "live")


def test_a_declaration_moves_the_next_instant_back_after_the_clock_went_back(seed: Seed) -> None:
    put(seed)
    seed.clock.set(seed.now - HOUR)

    assert {"beat": "same"} == put(seed)

    due = rule().next_after(seed.now)
    assert ({"beat": due}, due) == ticks(seed)
    assert 2 == len(told(seed))


def test_the_log_has_each_change_of_a_schedule(seed: Seed) -> None:
    put(seed, declaration(seed, job=seed.job("-", task="ping", spec_max=100)))
    change(seed, "pause", why="migration")
    change(seed, "resume")
    change(seed, "remove")
    text = rule().to_json()
    due = rule().next_after(START_MS)
    pack = seed.snapshot()["schedules"]["beat|job"]

    assert [
        ("beat", "on", None, text, 1, due, "code", pack, job_digest(pack)),
        ("beat", "paused", text, text, 2, due, "live"),
        ("beat", "on", text, text, 3, due, "live"),
        ("beat", "removed", text, text, 4, due, "live"),
    ] == told(seed)


def test_a_new_schedule_wakes_a_worker_only_if_it_is_due_earlier_than_the_other_schedules(
    seed: Seed,
) -> None:
    put(seed, declaration(seed, "a", every=60))
    seed.take_token()

    put(seed, declaration(seed, "b", every=3600 * 24 * 30))
    assert 0 == seed.tokens()
    put(seed, declaration(seed, "c", every=1))
    assert 1 == seed.tokens()


@pytest.mark.parametrize(
    "job",
    [{"remember_ms": 5, "call": "=70c5"}, {"expires_at_ms": START_MS + 5}, {"name": "t/a"}],
)
def test_a_schedule_is_refused_if_its_job_cannot_be_enqueued_repeatedly(
    seed: Seed, job: Any
) -> None:
    with pytest.raises(InvalidOption):
        declaration(seed, job=seed.job("-", **job))


def test_the_unique_job_of_a_schedule_keeps_its_own_unique_rule_if_overlaps_are_allowed(
    seed: Seed,
) -> None:
    made = declaration(seed, job=seed.job("-", name="t/a"), every=10, overlap="allow")

    assert "~/beat" not in made.packed
    assert {"beat": "changed"} == put(seed, made)


@pytest.mark.parametrize(
    "broken",
    [
        ("a b", -1, 5, 5, "{}", "[]\n\nab\n{}"),
        ("a" * 101, -1, 5, 5, "{}", "[]\n\nab\n{}"),
        ("a", -1, 0, 5, "{}", "[]\n\nab\n{}"),
        ("a", -1, 5, 4, "{}", "[]\n\nab\n{}"),
        ("a", -1, 5, 5, "{\n}", "[]\n\nab\n{}"),
        ("a", -1, 5, 5, "", "[]\n\nab\n{}"),
        ("a", -1, 5, 5, "{}", "[]\n\n\n{}"),
        ("a", -1, 5, 5, "{}", "[]\n\nab\n{}\n"),
    ],
)
def test_a_value_that_would_break_the_stored_entry_of_a_schedule_is_refused(
    seed: Seed, broken: Any
) -> None:
    put(seed, declaration(seed, "other"))
    args = {"by": "x", "why": "", "source": "live", "spec_max": 0, "what": "put"}
    call = Call("schedule", seed.queue, args, list, (broken,))

    def refused() -> None:
        with pytest.raises(Refused):
            seed.client.run(call)

    assert {} == seed.changes(refused)


def test_an_unknown_schedule_cannot_be_resumed(seed: Seed) -> None:
    assert ScheduleChange("gone", 0, 0) == seed.client.run(
        seed.client.calls.schedules.change(seed.queue, "none", "resume")
    )
