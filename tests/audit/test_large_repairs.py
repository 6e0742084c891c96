"""Repairs of boxes with many large values. A repair makes several short calls, and the box is right after the
last one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rq_core.doctor import box_faults, repair
from rq_core.doctor.finding import Finding
from rq_core.doctor.repair import CHUNK_BYTES
from rq_core.model.durable.boxes import write_header
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from tests.audit.test_forged_boxes import audited, boxes, found_by_doctor, mirror, text_of
from tests.kit.seed import LIFE, Seed

STEPS = 40
VALUE = '"' + "x" * 65_000 + '"'


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        mirror(made, database)
        made.enqueue("first")
        mirror(made, database)
        made.complete(*made.claim().jobs)
        yield made


def sizes(seed: Seed, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each call of a repair appends its size: the bytes of its members."""
    told: list[int] = []
    send = seed.client.calls.audit.repair

    def note(queue: str, records: Any, **options: Any) -> Any:
        told.append(sum(len(was) + len(value) for *_, was, value in records))
        return send(queue, records, **options)

    monkeypatch.setattr(seed.client.calls.audit, "repair", note)
    return told


def mended(seed: Seed, database: Database) -> list[Finding]:
    found = found_by_doctor(seed, database)
    assert found
    return repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))


@pytest.mark.slow
def test_saved_steps_with_large_values_are_repaired_in_short_calls(
    seed: Seed, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = seed.running("a")
    for number in range(1, STEPS + 1):
        seed.save(claim, entry=number, name=f"s{number}", value=VALUE, kept="full")
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    for number in range(1, STEPS + 1):
        text = text_of(seed, f"|{number}").replace(f"s{number} ", "t ", 1).replace("x", "y")
        seed.control.hset(boxes(seed), f"{LIFE}|{number}", text)
    told = sizes(seed, monkeypatch)
    assert 1 == len(found_by_doctor(seed, database))

    assert [] == mended(seed, database)

    assert true == seed.control.hgetall(boxes(seed))
    assert max(told) <= CHUNK_BYTES + 1_000
    assert ([], []) == compare(seed.client, database, seed.queue)


def test_saved_steps_that_the_log_lacks_are_removed_in_several_calls(
    seed: Seed, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = seed.running("a")
    seed.save(claim, name="s1", value="1", kept="full")
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    for number in range(2, 11):
        text = text_of(seed, "|1").replace("s1 ", f"s{number} ", 1)
        seed.control.hset(boxes(seed), f"{LIFE}|{number}", text)
    seed.control.hset(boxes(seed), LIFE, write_header("a", 10, 10))
    monkeypatch.setattr(box_faults, "MENDED_MAX", 4)
    told = sizes(seed, monkeypatch)

    assert [] == mended(seed, database)

    assert (3, true) == (len(told), seed.control.hgetall(boxes(seed)))
