"""Caps with real worker processes, in a short form of `scripts/prove/live caps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from tests.rigs.judge.times import percentile
from tests.rigs.live import exact, faults, tasks, wakeups
from tests.rigs.live.crew import crew


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    tasks.app.connect_to(valkey_url)
    yield tasks.app.client
    tasks.app.close()


@pytest.mark.alone
@pytest.mark.slow
def test_concurrent_workers_reach_the_caps_and_never_exceed_them(
    client: Client, tmp_path: Path
) -> None:
    """Checks caps of 1, 2, 3 and 10 with four worker processes: per task, per queue, per key, and all together.

    By the log and by the jobs' own records, each cap is reached and never exceeded. At least 99 % of the places that
    become free are taken within 50 ms.
    """
    queues = [tasks.queue_of(kind, n) for kind, n in tasks.exact]
    with crew(client.url, tmp_path, queues, 4) as running:
        found = [
            exact.drain(client, running, kind, n, 40 + 4 * exact.most_of(kind, n), timeout=30)
            for kind, n in tasks.exact
        ]

    assert [problem for each in found for problem in each.problems] == []
    again = [ms for each in found for ms in each.refilled_ms]
    assert len(again) > 500
    assert percentile(again, 0.99) <= 50, sorted(again)[-20:]
    assert max(ms for each in found for ms in each.room_ms) < 1000


@pytest.mark.parametrize("rounds", [wakeups.race, wakeups.turns])
@pytest.mark.slow
def test_no_wake_up_is_lost_in_races_between_enqueues_cancels_and_ends(
    client: Client, tmp_path: Path, rounds: Callable[..., wakeups.Race]
) -> None:
    """Checks rounds in which jobs are enqueued and cancelled while the last holders end. No job may wait forever."""
    with crew(client.url, tmp_path, ["race", "turns"], 2, concurrency=2):
        found = rounds(client, 2_500 if rounds is wakeups.race else 500)

    assert found.stuck == []
    assert found.replay.breaches == []
    assert found.cancelled > 0
    assert found.close > found.rounds / 10
    assert max(found.replay.room_ms) < wakeups.LIMIT_S * 1000


@pytest.mark.alone
@pytest.mark.slow
def test_the_places_in_caps_that_a_killed_worker_holds_are_released_soon_after_its_leases_expire(
    client: Client, tmp_path: Path
) -> None:
    """Checks at each moment that the holders of a scope are exactly its claimed jobs."""
    found = faults.kill_workers(client, tmp_path, 3)

    assert found.problems == []
    assert found.held >= 3
    # A lease, and the look that an idle worker takes every third of one.
    assert max(found.freed_ms) < faults.LEASE_S * 1000 * 4 / 3 + 500, found.freed_ms


@pytest.mark.slow
def test_a_worker_that_continues_after_its_lease_has_expired_releases_no_place_in_a_cap(
    client: Client, tmp_path: Path
) -> None:
    """Checks workers that resume after their leases have expired, and settle their jobs.

    Redis refuses and logs these settlements. The cap of 1 is never exceeded.
    """
    found = faults.stop_and_continue(client, tmp_path, 2)

    assert found.problems == []
    assert found.refused == found.zombies
    assert found.most == 1
