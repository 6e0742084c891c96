"""Schedules that a client changed by hand. The doctor finds the changes from Redis and the outbox."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core import doctor
from rq_core.doctor import Kind
from rq_core.model.recurrence import recurrence
from rq_core.model.schedule import Schedule
from rq_core.protocol.calls.schedules import Declaration, tick
from rq_core.worker.ticker import instants_of
from tests.kit.seed import Seed

HOUR = 3_600_000


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        rules = [
            recurrence("beat", every=60),
            recurrence("late", every=86_400, spread=600),
            recurrence("halted", every=60),
        ]
        jobs = [Declaration.of(made.job("-", task="ping"), rule) for rule in rules]
        made.client.run(made.calls.schedules.put(made.queue, jobs))
        made.client.run(made.calls.schedules.change(made.queue, "halted", "pause"))
        made.advance(61_000)
        serve(made)
        made.client.run(made.calls.schedules.run(made.queue, "late"))
        yield made


def serve(seed: Seed) -> None:
    answer = seed.client.run(tick(seed.queue, "w-1"))
    while answer.due:
        instants = instants_of(answer.due, answer.now_ms)
        answer = seed.client.run(tick(seed.queue, "w-1", instants))


def stored(seed: Seed, name: str = "beat") -> Schedule:
    return seed.client.run(seed.calls.schedules.stored(seed.queue, [name]))[name]


def write(seed: Seed, name: str, entry: object) -> None:
    seed.control.hset(seed.keys("schedules"), name, str(entry))


def edit(seed: Seed, name: str, pattern: str, other: str) -> None:
    """Replace the first match of ``pattern`` in the stored job of a schedule."""
    field = f"{name}|job"
    job = str(seed.control.hget(seed.keys("schedules"), field))
    changed = re.sub(pattern, other, job, count=1)
    assert changed != job
    write(seed, field, changed)


def later(seed: Seed) -> Schedule:
    found = stored(seed)
    return found._replace(next_ms=found.next_ms + 60_000, due_ms=found.due_ms + 60_000)


Hand = Callable[[Seed], Any]
BY_HAND: dict[str, tuple[Hand, Kind, str]] = {
    "another next": (lambda s: write(s, "beat", later(s)), Kind.LOG_DIFFERS, "next="),
    "another version": (
        lambda s: write(s, "beat", stored(s)._replace(version=9)), Kind.LOG_DIFFERS, "v=9, 1 by the log",
    ),
    "another state": (
        lambda s: (write(s, "beat", stored(s)._replace(state="paused")), s.control.zrem(s.keys("ticks"), "beat")),
        Kind.LOG_DIFFERS, "state=paused, on by the log",
    ),
    "resumed by hand": (
        lambda s: (write(s, "halted", stored(s, "halted")._replace(state="on")),
            s.control.zadd(s.keys("ticks"), {"halted": stored(s, "halted").due_ms})),
        Kind.LOG_DIFFERS, "state=on, paused by the log",
    ),
    "another rule": (
        lambda s: write(s, "beat", stored(s)._replace(rule=recurrence("beat", every=61).to_json())),
        Kind.LOG_DIFFERS, "rule=",
    ),
    "another spread": (
        lambda s: (write(s, "late", stored(s, "late")._replace(due_ms=stored(s, "late").due_ms + 1)),
            s.control.zadd(s.keys("ticks"), {"late": stored(s, "late").due_ms})),
        Kind.LOG_DIFFERS, "by its rule",
    ),
    "an entry that is not one": (lambda s: write(s, "beat", "on v=x\n{}"), Kind.UNREADABLE, "cannot be read"),
    "no entry": (lambda s: s.control.hdel(s.keys("schedules"), "beat"), Kind.UNREADABLE, "a job and no entry"),
    "no job": (lambda s: s.control.hdel(s.keys("schedules"), "beat|job"), Kind.UNREADABLE, "an entry and no job"),
    "neither": (
        lambda s: s.control.hdel(s.keys("schedules"), "beat", "beat|job"), Kind.LOST,
        "schedule beat is on by the log, and Redis does not have it",
    ),
    "other arguments": (lambda s: edit(s, "beat", r'"args":{}', '"args":{"n":1}'), Kind.SPEC_DIFFERS, "beat"),
    "another kind": (lambda s: edit(s, "beat", "normal", "high"), Kind.SPEC_DIFFERS, "not the one that the log has"),
    "another lane": (lambda s: edit(s, "beat", "\n\n", "\n2+tenant=a\n"), Kind.SPEC_DIFFERS, "not the one"),
    "one that nobody declared": (
        lambda s: [write(s, f"new{end}", s.control.hget(s.keys("schedules"), f"halted{end}")) for end in ("", "|job")],
        Kind.UNLOGGED, "schedule new is paused, and the log does not have it",
    ),
    "ticks: later by an hour": (
        lambda s: s.control.zadd(s.keys("ticks"), {"beat": s.now + HOUR}), Kind.INDEX, "`ticks` has it at",
    ),
    "ticks: earlier": (lambda s: s.control.zadd(s.keys("ticks"), {"beat": 1}), Kind.INDEX, "`ticks` has it at"),
    "ticks: without beat": (lambda s: s.control.zrem(s.keys("ticks"), "beat"), Kind.INDEX, "`ticks` lacks it"),
    "ticks: one that is paused": (lambda s: s.control.zadd(s.keys("ticks"), {"halted": 1}), Kind.INDEX, "`ticks` has"),
    "no tick|": (lambda s: s.control.zrem(s.keys("scheduled"), "tick|"), Kind.INDEX, "lacks 'tick|'"),
    "tick| in an hour": (
        lambda s: s.control.zadd(s.keys("scheduled"), {"tick|": s.now + HOUR}), Kind.INDEX, "has 'tick|' at",
    ),
}  # fmt: skip


def found(seed: Seed) -> list[tuple[Kind, str]]:
    return [(each.kind, each.says) for each in doctor.diagnose(seed.client, seed.queue)]


def test_the_doctor_reports_no_finding_for_schedules_that_only_scripts_have_changed(
    seed: Seed,
) -> None:
    assert [] == found(seed)
    seed.advance(60_001)
    seed.client.run(tick(seed.queue, "w-1"))
    assert [] == found(seed)
    serve(seed)
    assert [] == found(seed)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_doctor_reports_a_change_of_a_schedule_by_hand(seed: Seed, name: str) -> None:
    change, kind, said = BY_HAND[name]
    change(seed)

    assert any(k is kind and said in says for k, says in found(seed)), found(seed)


@pytest.mark.parametrize("name", [name for name in BY_HAND if BY_HAND[name][1] is Kind.INDEX])
def test_the_doctor_repairs_the_indexes_of_schedules_that_follow_from_the_stored_entries(
    seed: Seed, name: str
) -> None:
    BY_HAND[name][0](seed)
    findings = doctor.diagnose(seed.client, seed.queue)

    assert [] == doctor.repair(seed.client, seed.queue, findings, by="ada")
    seed.advance(60_001)
    serve(seed)
    assert stored(seed).next_ms > seed.now


@pytest.mark.parametrize("name", ["no entry", "no job", "an entry that is not one"])
def test_the_doctor_reports_but_does_not_change_a_schedule_that_it_cannot_repair(
    seed: Seed, name: str
) -> None:
    BY_HAND[name][0](seed)
    before = seed.snapshot()["schedules"]
    findings = doctor.diagnose(seed.client, seed.queue)

    left = doctor.repair(seed.client, seed.queue, findings, by="ada")

    assert Kind.UNREADABLE in {each.kind for each in left}
    assert before == seed.snapshot()["schedules"]
