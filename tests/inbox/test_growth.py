"""Short forms of scripts/prove/inbox rows, parked and losses."""

from __future__ import annotations

from pathlib import Path

from sql_audit.inbox.sending import CALL_ROWS
from tests.kit.servers import engines
from tests.rigs.inbox.growth import Growth, Parked, grow, park
from tests.rigs.inbox.losses import Loss, lose_at
from tests.rigs.inbox.points import Point


def test_an_inbox_is_as_large_after_five_times_as_many_rows(
    sqlite_url: str, valkey_url: str
) -> None:
    found = grow(sqlite_url, valkey_url, rows=5_000, block=1_000)
    assert found.holds, found


def test_a_relay_beside_parked_rows_and_one_beside_none_hand_the_same_rows_over(
    tmp_path: Path, valkey_url: str
) -> None:
    """How fast they are is not compared here."""
    urls = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    found = park(urls, valkey_url, parked=1_000, rows=300)
    assert all(best >= median > 0 for best, median in found.jobs_per_s)


def test_growth_and_slowness_would_be_found() -> None:
    assert not Growth("sqlite", 10, {"table": [100, 115], "indexes": [100, 110]}, [1, 1], 1.0).holds
    flat = {"table": [100, 101], "indexes": [100, 99]}
    assert Growth("sqlite", 10, flat, [1, 1], 1.0).holds
    assert not Growth("sqlite", 10, {**flat, "relay": [1, 2**23]}, [1, 1], 1.0).holds
    assert not Parked("sqlite", 10, [[100, 90], [79, 79]], [1.0, 1.0], [1.0, 1.0]).holds


def test_after_a_failover_to_a_replica_that_is_behind_no_row_is_lost_and_the_log_says_what_ran_twice(
    tmp_path: Path, sqlite_url: str
) -> None:
    point = Point("send", 2, "between the calls of a batch")
    found = lose_at(sqlite_url, engines()[0], tmp_path, point, Loss.FAILOVER_BEHIND, runs=True)
    assert found.holds, found
    assert (found.lost, found.twice) == (0, CALL_ROWS)
