"""Very many rows go through an inbox, and very many other rows are parked beside it: nothing grows, and nothing becomes
slower.

The rows come from plain INSERTs, and their jobs are handed over but never run. Whenever the inbox is empty after
``FLUSHED`` rows, Redis is flushed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from sql_audit.inbox.admin import look
from sql_audit.inbox.service import RelayService
from sql_audit.inbox.watching import ROWS_MAX
from tests.kit.inbox import QUEUE, Stage

BLOCK: Final = 10_000
"""The number of rows that are inserted at once and then handed over."""
FLUSHED: Final = 200_000
GROWTH: Final = 1.1
"""The highest allowed growth of the table and its indexes together, from a fifth of the rows to all rows."""
RELAY_MAX: Final = 4 * 1024 * 1024
"""The highest number of bytes of the table ``rqc_relay``: one row, and the versions of this row that are not vacuumed
yet."""
SLOWER: Final = 0.8
"""The lowest allowed ratio of the jobs per second with parked rows to the jobs per second without. Two equal runs may
differ by as much."""
REPEATS: Final = 5

_NUMBERS: Final = {
    "postgresql": "SELECT i FROM generate_series(1, ?) AS n (i)",
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n",
}
_SIZES: Final = {
    "postgresql": (
        "SELECT pg_table_size('rqc_inbox'), pg_indexes_size('rqc_inbox'), pg_total_relation_size('rqc_relay')"
    ),
    # The file has the rows, their indexes, and pages that are free again.
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
}
_SIZE_NAMES: Final = {"postgresql": ("table", "indexes", "relay"), "sqlite": ("file",)}


@dataclass(frozen=True, slots=True)
class Growth:
    """Sizes in bytes and jobs per second, after a fifth of the rows and after all rows."""

    database: str
    rows: int
    sizes: dict[str, list[int]]
    """The sizes after a fifth of the rows, and at the end."""
    jobs_per_s: list[int]
    """The jobs per second of the first fifth of the rows, and of the last fifth."""
    seconds: float

    @property
    def holds(self) -> bool:
        sizes = {name: each for name, each in self.sizes.items() if name != "relay"}
        fifth, end = map(sum, zip(*sizes.values(), strict=True))
        return end <= GROWTH * fifth and max(self.sizes.get("relay", [0])) <= RELAY_MAX

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Parked:
    """The figures of a relay whose table of parked rows is empty, and of a relay whose table is full. Each is the best
    run and the median of runs."""

    database: str
    parked: int
    jobs_per_s: list[list[int]]
    """The best and the median jobs per second, without parked rows and then with them."""
    idle_ms: list[float]
    """The median time (ms) of a round without work."""
    look_ms: list[float]
    """The median time (ms) of a look for metrics. A look counts parked rows only up to a limit."""

    @property
    def holds(self) -> bool:
        (alone, _), (beside, _) = self.jobs_per_s
        return beside >= SLOWER * alone

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def grow(
    url: str,
    redis_url: str,
    rows: int,
    block: int = BLOCK,
    on_fifth: Callable[[str], None] = lambda _: None,
) -> Growth:
    """Let rows go through an inbox in blocks, and measure after a fifth of the rows and at the end.

    ``on_fifth`` is called with a line about each fifth of the rows.
    """
    began = time.monotonic()
    sizes: list[tuple[int, ...]] = []
    speeds = []
    with _relayed(url, redis_url) as (stage, service):
        kind = stage.session.engine.dialect.name
        spent, since = 0.0, 0
        for done in range(block, rows + 1, block):
            spent += _hand_over(stage, service, block)
            if done % FLUSHED == 0:
                _flush(stage)
            if done % (rows // 5) == 0:
                now, speed = tuple(stage.sql(_SIZES[kind])[0]), round((done - since) / spent)
                on_fifth(f"{kind}: {done:,} rows, {now} bytes, {speed:,} jobs/s")
                if done in (rows // 5, rows):
                    sizes.append(now)
                    speeds.append(speed)
                spent, since = 0.0, done
        assert stage.relay_row().relayed == rows
    named = dict(zip(_SIZE_NAMES[kind], map(list, zip(*sizes, strict=True)), strict=True))
    return Growth(kind, rows, named, speeds, round(time.monotonic() - began, 1))


def park(urls: tuple[str, str], redis_url: str, parked: int, rows: int) -> Parked:
    """Measure two inboxes alternately. Only the second inbox has parked rows."""
    speeds: list[list[float]] = [[], []]
    idle: list[list[float]] = [[], []]
    looks: list[list[float]] = [[], []]
    with _relayed(urls[0], redis_url) as alone, _relayed(urls[1], redis_url) as beside:
        kind = alone[0].session.engine.dialect.name
        columns = "queue, id, job_id, task, args, created_at, why"
        values = "'mail', i, 'p-' || i, 't', '{}', CURRENT_TIMESTAMP, 'it is no job'"
        numbers = _NUMBERS[kind].replace("SELECT i FROM", f"SELECT {values} FROM")
        beside[0].sql(f"INSERT INTO rqc_inbox_parked ({columns}) {numbers}", parked)
        for _ in range(REPEATS):
            for which, (stage, service) in enumerate((alone, beside)):
                speeds[which].append(rows / _hand_over(stage, service, rows))
                idle[which].append(_ms(service.round))
                looks[which].append(_ms(lambda stage=stage: look(stage.session, rows_max=ROWS_MAX)))  # type: ignore[misc]
                _flush(stage)
        counted = beside[0].sql("SELECT count(*) FROM rqc_inbox_parked")[0][0]
        assert counted == parked
    return Parked(
        kind,
        parked,
        [[round(max(each)), round(statistics.median(each))] for each in speeds],
        [round(statistics.median(each), 2) for each in idle],
        [round(statistics.median(each), 2) for each in looks],
    )


@contextmanager
def _relayed(url: str, redis_url: str) -> Iterator[tuple[Stage, RelayService]]:
    stage = Stage(url, redis_url)
    with stage.relay() as relay:
        if stage.session.engine.dialect.name == "sqlite":
            with stage.session.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                driver.execute("PRAGMA journal_mode = WAL")
        yield stage, RelayService(relay._session, relay._client, relay)
    stage.close()


def _hand_over(stage: Stage, service: RelayService, rows: int) -> float:
    """Insert rows, and return the seconds that their hand-over takes."""
    kind = stage.session.engine.dialect.name
    values = "'mail', 'send', '{\"number\":' || i || '}', '{}'"
    numbers = _NUMBERS[kind].replace("SELECT i FROM", f"SELECT {values} FROM")
    stage.sql(f"INSERT INTO rqc_inbox (queue, task, args, packed) {numbers}", rows)
    began = time.perf_counter()
    while service.round():
        pass
    return time.perf_counter() - began


def _flush(stage: Stage) -> None:
    assert not stage.sql("SELECT 1 FROM rqc_inbox WHERE queue = ? LIMIT 1", QUEUE)
    stage.client.run(stage.client.calls.delivery.ask([["FLUSHALL"]]))


def _ms(does: Callable[[], object]) -> float:
    began = time.perf_counter()
    does()
    return 1e3 * (time.perf_counter() - began)
