"""Damage to a queue whose outbox lacks the events of its jobs. Verify and the doctor find each kind of damage from
SQL."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import command
from tests.kit.damages import DAMAGES, fill
from tests.kit.seed import Seed


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    """Yield a queue with jobs. Only SQL has their events."""
    with Seed(valkey_url, real_clock=True) as made:
        mirror = Mirror(Outbox(made.client), database, made.queue)
        made.enqueue("first", delay_ms=1_000_000)
        auditlog.drain(mirror)
        fill(made)
        for _ in range(2):
            made.edit("first", due="+1000000")
            auditlog.drain(mirror)
        assert len(made.snapshot()["outbox"]) == 1
        yield made


def left(seed: Seed, database: Database, *words: str) -> list[str]:
    """Run `rq-core doctor` with these options, and return the findings that remain."""
    url = database.address.render_as_string(hide_password=False)
    redis = seed.calls.delivery.asking.url
    asked = ("doctor", seed.queue, "--redis", redis, "--force", "--audit", url, "--json", *words)
    reports = json.loads(command(*asked).stdout)
    return [each["says"] for report in reports if report["queue"] for each in report["left"]]


def contents(seed: Seed) -> dict[str, object]:
    """Return the jobs, names and limits of a queue, without leases and rates, which change with time."""
    keys = ("jobs", "state", "slots", "holders", "caps", "results", "waiting")
    return {key: seed.snapshot()[key] for key in keys}


def test_an_undamaged_queue_has_no_findings(seed: Seed, database: Database) -> None:
    assert compare(seed.client, database, seed.queue) == ([], [])
    assert left(seed, database) == []


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.slow
def test_a_planted_damage_is_found_and_repaired_if_it_can_be_repaired(
    seed: Seed, database: Database, name: str
) -> None:
    damage, before = DAMAGES[name], contents(seed)
    damage.plant(seed)
    planted = contents(seed)

    violations, _ = compare(seed.client, database, seed.queue)
    assert damage.invariant in {v.invariant for v in violations if damage.says in v.says}
    assert any(damage.says in says for says in left(seed, database))
    after = left(seed, database, "--repair")

    assert bool(after) is not damage.is_mended
    assert contents(seed) == (before if damage.is_mended else planted)
