"""Short forms of three parts of `scripts/prove/inbox`: rows, parked and losses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sql_audit.inbox.sending import CALL_ROWS
from tests.kit.servers import engines
from tests.rigs.inbox.growth import Growth, Parked, grow, park
from tests.rigs.inbox.losses import Loss, lose_at
from tests.rigs.inbox.points import Point


def test_an_inbox_does_not_grow_with_the_rows_that_it_handed_over(
    sqlite_url: str, valkey_url: str
) -> None:
    found = grow(sqlite_url, valkey_url, rows=5_000, block=1_000)
    assert found.holds, found


@pytest.mark.slow
def test_a_relay_hands_over_all_rows_of_an_inbox_with_and_without_parked_rows(
    tmp_path: Path, valkey_url: str
) -> None:
    """Checks an inbox with 1,000 parked rows, and one without. Speeds are not compared."""
    urls = f"sqlite:///{tmp_path / 'a.db'}", f"sqlite:///{tmp_path / 'b.db'}"
    found = park(urls, valkey_url, parked=1_000, rows=300)
    assert all(best >= median > 0 for best, median in found.jobs_per_s)


def test_the_growth_check_fails_if_an_inbox_grows_or_a_relay_is_slow() -> None:
    def holds(*, autovacuum: bool = False, **sizes: list[int]) -> bool:
        return Growth("postgresql", 10, sizes, autovacuum, [1, 1], 1.0).holds

    assert holds(table=[100, 100], relay=[1, 2])
    assert not holds(table=[100, 100], relay=[1, 2**23])
    assert not holds(table=[100, 101], relay=[1, 1])
    assert not holds(autovacuum=True, table=[100, 115], ids=[100, 110], relay=[1, 1])
    assert holds(autovacuum=True, table=[100, 101], ids=[100, 99], relay=[1, 2])
    assert not Parked("sqlite", 10, [[100, 90], [79, 71]], [1.0, 1.0], [1.0, 1.0]).holds
    assert not Parked("sqlite", 10, [[100, 90], [99, 80]], [1.0, 1.0], [1.0, 1.6]).holds


@pytest.mark.slow
def test_a_failover_to_an_outdated_replica_loses_no_row(tmp_path: Path, sqlite_url: str) -> None:
    point = Point("send", 2, "between the calls of a batch")
    found = lose_at(sqlite_url, engines()[0], tmp_path, point, Loss.FAILOVER_BEHIND, runs=True)
    assert found.holds, found
    assert (found.lost, found.twice) == (0, CALL_ROWS)
