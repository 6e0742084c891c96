"""Shows that an inbox neither grows nor slows down.

Very many rows go through one inbox, and another inbox has very many parked rows. Rows are inserted in blocks, a relay
hands their jobs over, and no worker runs the jobs. Redis is flushed after each block, so that each block can have the
same job ids, and needs the same space.

PostgreSQL uses the space of deleted rows again after a VACUUM. The programme runs a VACUUM after each block, and then
the sizes must be equal to the byte. With ``--autovacuum`` PostgreSQL chooses the times, and the sizes vary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import create_engine

from sql_audit.inbox.service import RelayService
from sql_audit.inbox.watching import InboxWatch
from tests.kit.inbox import QUEUE, Stage

BLOCK: Final = 10_000
"""The number of rows that are inserted at once and then handed over."""
AUTOVACUUM_GROWTH: Final = 1.1
"""The highest allowed size of the table and its indexes together at the end, divided by their size after a fifth of the
rows, if autovacuum frees the space. Otherwise nothing may grow."""
RELAY_MAX: Final = 4 * 1024 * 1024
"""The highest number of bytes of the table ``rqc_relay``: one row, and the versions of this row that are not vacuumed
yet."""
SLOWER: Final = 0.8
"""The lowest allowed ratio of the jobs per second with parked rows to the jobs per second without. Two equal runs may
differ by as much."""
LOOK_SLOWER_MS: Final = 0.5
"""The highest allowed difference (ms) between the median times of a read for metrics with parked rows and without
parked rows."""
REPEATS: Final = 5
LOOKS: Final = 20

_NUMBERS: Final = {
    "postgresql": "SELECT i FROM generate_series(1, ?) AS n (i)",
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n",
}
_JOB: Final = {
    "postgresql": "md5(CAST(i AS text))",
    "sqlite": "printf('%08x-%d', i * 2654435761 % 4294967296, i)",
}
_SIZES: Final = {
    "postgresql": (
        "SELECT pg_table_size('rqc_inbox'), pg_relation_size('rqc_inbox_pkey'),"
        " pg_relation_size('rqc_inbox_queue_job_id_key'), pg_total_relation_size('rqc_relay')"
    ),
    # The file has the rows, their indexes, and pages that are free again.
    "sqlite": "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
}
_SIZE_NAMES: Final = {"postgresql": ("table", "ids", "job_ids", "relay"), "sqlite": ("file",)}


@dataclass(frozen=True, slots=True)
class Growth:
    """Sizes (bytes) and speeds (jobs per second) of an inbox, after a fifth of the rows and at the end."""

    database: str
    rows: int
    sizes: dict[str, list[int]]
    """Two values for each part of the database: its size after a fifth of the rows, and its size at the end. On
    PostgreSQL the parts are the table, its index of ids, its index of the jobs' ids, and the table ``rqc_relay``
    with its index; on SQLite the only part is the file."""
    autovacuum: bool
    """True if autovacuum of PostgreSQL freed the space of deleted rows, and not a VACUUM of the programme."""
    jobs_per_s: list[int]
    """The jobs per second of the first fifth of the rows, and of the last fifth."""
    seconds: float

    @property
    def holds(self) -> bool:
        if max(self.sizes.get("relay", [0])) > RELAY_MAX:
            return False
        sizes = [each for name, each in self.sizes.items() if name != "relay"]
        if not self.autovacuum:
            return all(fifth == end for fifth, end in sizes)
        fifth, end = map(sum, zip(*sizes, strict=True))
        return end <= AUTOVACUUM_GROWTH * fifth

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Parked:
    """The figures of two relays. The first has no parked rows in its inbox, and the second has very many.

    Each list has the first relay's figure first.
    """

    database: str
    parked: int
    jobs_per_s: list[list[int]]
    """The best and the median jobs per second: first without parked rows, then with parked rows."""
    idle_ms: list[float]
    """The median time (ms) of a relay's round that finds no row."""
    look_ms: list[float]
    """The median time (ms) of a read for metrics."""

    @property
    def holds(self) -> bool:
        alone, beside = self.jobs_per_s
        # On a busy machine one of the two may differ by chance; a relay that is slower shows in both.
        is_fast = any(
            with_ >= SLOWER * without for without, with_ in zip(alone, beside, strict=True)
        )
        return is_fast and self.look_ms[1] <= self.look_ms[0] + LOOK_SLOWER_MS

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


def grow(
    url: str,
    redis_url: str,
    rows: int,
    block: int = BLOCK,
    on_fifth: Callable[[str], None] = lambda _: None,
    *,
    autovacuum: bool = False,
) -> Growth:
    """Let rows go through an inbox in blocks, and measure after a fifth of the rows and at the end.

    With ``autovacuum``, only PostgreSQL itself runs VACUUM. ``on_fifth`` gets one line of text after each fifth.
    """
    began = time.monotonic()
    sizes: list[tuple[int, ...]] = []
    speeds = []
    with _relayed(url, redis_url) as (stage, service):
        kind = stage.session.engine.dialect.name
        spent, since = 0.0, 0
        for done in range(block, rows + 1, block):
            spent += _hand_over(stage, service, block)
            _flush(stage)
            if done % (rows // 5) == 0:
                now, speed = tuple(stage.sql(_SIZES[kind])[0]), round((done - since) / spent)
                on_fifth(f"{kind}: {done:,} rows, {now} bytes, {speed:,} jobs/s")
                if done in (rows // 5, rows):
                    sizes.append(now)
                    speeds.append(speed)
                spent, since = 0.0, done
            if kind == "postgresql" and not autovacuum:
                _vacuum(stage)
        assert stage.relay_row().relayed == rows
    named = dict(zip(_SIZE_NAMES[kind], map(list, zip(*sizes, strict=True)), strict=True))
    return Growth(kind, rows, named, autovacuum, speeds, round(time.monotonic() - began, 1))


def park(urls: tuple[str, str], redis_url: str, parked: int, rows: int) -> Parked:
    """Measure two inboxes in turn. Only the second one has parked rows."""
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
                watch = InboxWatch(stage.database_url)
                watch.look()
                for _ in range(LOOKS):
                    idle[which].append(_ms(service.round))
                    looks[which].append(_ms(watch.look))
                watch.close()
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
    """Insert rows, and return how many seconds the relay needs to hand them over."""
    kind = stage.session.engine.dialect.name
    values = f"'mail', {_JOB[kind]}, 'send', '{{\"number\":' || i || '}}', '{{}}'"
    numbers = _NUMBERS[kind].replace("SELECT i FROM", f"SELECT {values} FROM")
    stage.sql(f"INSERT INTO rqc_inbox (queue, job_id, task, args, packed) {numbers}", rows)
    began = time.perf_counter()
    while service.round():
        pass
    return time.perf_counter() - began


def _vacuum(stage: Stage) -> None:
    engine = create_engine(stage.session.address, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("VACUUM rqc_inbox, rqc_relay")
    engine.dispose()


def _flush(stage: Stage) -> None:
    assert not stage.sql("SELECT 1 FROM rqc_inbox WHERE queue = ? LIMIT 1", QUEUE)
    stage.client.run(stage.client.calls.delivery.ask([["FLUSHALL"]]))


def _ms(does: Callable[[], object]) -> float:
    began = time.perf_counter()
    does()
    return 1e3 * (time.perf_counter() - began)
