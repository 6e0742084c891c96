"""Runs mirrors that write and readers that query on one SQLite audit database.

    scripts/measure/once/run sqlite-crowd --seconds 60

It starts a server, two mirrors and eight readers, each in a process of its own, and lets jobs run all the time. It
reports locked databases, duplicate or missing events, overlapping transactions, and connections with wrong settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import event

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.queries import history, reports
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit.outbox import StreamSource, StreamWriter
from tests.kit.processes import python
from tests.kit.servers import RedisServer, engines

QUEUE = "mail"


@dataclass
class Found:
    """The work of the mirrors and the readers, and the faults that were found."""

    events: int = 0
    reads: int = 0
    batches: list[int] = field(default_factory=list)
    """The number of batches, by mirror."""
    errors: list[str] = field(default_factory=list)
    begins: set[str] = field(default_factory=set)
    """The statements with which writing transactions began, such as BEGIN IMMEDIATE."""
    writers: set[tuple[tuple[str, int], ...]] = field(default_factory=set)
    """The settings (pragmas) of the connections that wrote."""
    readers: set[tuple[tuple[str, int], ...]] = field(default_factory=set)
    overlaps: int = 0
    """The number of times that transactions of different connections were open at the same moment."""
    explicit_checkpoints: int = 0


READY = "ready\n"
PRAGMAS = ("synchronous", "wal_autocheckpoint", "query_only")


def watch(engine: Any, told: dict[str, Any]) -> None:
    """Record in the given dict the settings of each new SQLite connection, and the begin and end of its
    transactions."""

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _: Any) -> None:
        pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in PRAGMAS}
        told["pragmas"].append(pragmas)

        def trace(statement: str) -> None:
            word = statement.split(maxsplit=1)[0].upper()
            if word in ("BEGIN", "SAVEPOINT"):
                told["begins"].add(statement)
                told["open"].append(time.monotonic_ns())
            if "checkpoint" in statement.lower():
                told["checkpoints"] += 1

        connection.set_trace_callback(trace)

    @event.listens_for(engine, "checkin")
    def returned(_connection: Any, _record: Any) -> None:
        # Only now is the transaction over: the trace of COMMIT comes before it is done.
        if len(told["open"]) > len(told["closed"]):
            told["closed"].append(time.monotonic_ns())


def fresh() -> dict[str, Any]:
    return {
        "pragmas": [],
        "begins": set(),
        "open": [],
        "closed": [],
        "checkpoints": 0,
        "errors": [],
    }


def mirror(redis_url: str, path: str, stop: threading.Event) -> dict[str, Any]:
    told = fresh()
    source, database = StreamSource(redis_url), Database(path)
    watch(database.engine, told)
    mirror_ = Mirror(source, database, QUEUE, limits=BatchLimits(events=50))
    batches = 0
    idle = False
    while not (stop.is_set() and idle):
        try:
            outcome = mirror_.turn().outcome
        except Exception as error:  # noqa: BLE001 - it is told
            told["errors"].append(repr(error))
            break
        batches += outcome is TurnOutcome.MIRRORED
        idle = outcome is TurnOutcome.IDLE
        if outcome in (TurnOutcome.IDLE, TurnOutcome.HELD):
            # Not `stop.wait`: once it is set, the mirror that waits would keep a processor from the one that works.
            time.sleep(0.002)
    database.close()
    source.close()
    return {**told, "batches": batches}


def reader(_redis_url: str, path: str, stop: threading.Event) -> dict[str, Any]:
    told = fresh()
    database = Database(path)
    watch(database.readers, told)
    reads = 0
    while not stop.is_set():
        try:
            with database.readers.connect() as connection:
                count = "SELECT (SELECT COUNT(*) FROM job_event), events FROM mirror_cursor"
                there, counted = connection.exec_driver_sql(count).one()
            if there != counted:
                told["errors"].append(f"{there} events, the cursor counts {counted}")
            reports.report(database.readers, QUEUE)
            history.queue_tail(database.readers, QUEUE, 5)
        except Exception as error:  # noqa: BLE001 - it is told
            told["errors"].append(repr(error))
        reads += 1
    database.close()
    return {**told, "reads": reads}


def run(redis_url: str, path: Path, seconds: float, *, mirrors: int = 2, readers: int = 8) -> Found:
    """Run the mirrors and the readers for ``seconds``, then check the database. Return the findings."""
    database = Database(str(path))
    migrate.upgrade_schema(database)
    source = StreamSource(redis_url)
    writer = StreamWriter(source, QUEUE)
    Mirror(source, database, QUEUE).turn()
    roles = ["mirror"] * mirrors + ["reader"] * readers
    words = (
        "scripts.measure.once.sqlite_crowd",
        "--redis",
        redis_url,
        "--audit",
        str(path),
        "--role",
    )
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(python(*words, role, log=path.with_name(f"{n}-{role}.log")))
            for n, role in enumerate(roles)
        ]
        for process in processes:
            process.wait_said(READY, timeout=60)
        deadline = time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            writer.life(*(f"{number}-{each}" for each in range(5)))
            number += 1
            time.sleep(0.001)
        for process in processes:
            process.terminate()
        told = [json.loads(process.finish(60).splitlines()[-1]) for process in processes]
    found = Found(events=1 + 15 * number)
    spans: list[tuple[int, int, int]] = []
    for each, role in enumerate(roles):
        _add(found, role, told[each], spans, each)
    spans.sort()
    found.overlaps = sum(a[1] > b[0] and a[2] != b[2] for a, b in pairwise(spans))
    if number * 3 + 1 != len(writer.log):
        found.errors.append("the writer lost count")
    source.close()
    database.close()
    return found


def _add(
    found: Found, role: str, told: dict[str, Any], spans: list[tuple[int, int, int]], process: int
) -> None:
    found.errors += told["errors"]
    found.explicit_checkpoints += told["checkpoints"]
    pragmas = {tuple(sorted(each.items())) for each in told["pragmas"]}
    if role == "reader":
        found.reads += told["reads"]
        found.readers |= pragmas
        return
    found.writers |= pragmas
    found.begins |= set(told["begins"])
    found.batches.append(told["batches"])
    spans += [(a, b, process) for a, b in zip(told["open"], told["closed"], strict=True)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--role", choices=("mirror", "reader"))
    parser.add_argument("--redis")
    parser.add_argument("--audit")
    options = parser.parse_args(arguments)
    if options.role is not None:
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        sys.stdout.write(READY)
        sys.stdout.flush()
        work = mirror if options.role == "mirror" else reader
        told = work(options.redis, options.audit, stop)
        sys.stdout.write(json.dumps({**told, "begins": sorted(told["begins"])}))
        return 0
    with tempfile.TemporaryDirectory(prefix="rqc-") as directory:
        server = RedisServer(engines()[0], Path(directory)).start()
        try:
            found = run(server.url, Path(directory) / "audit.db", options.seconds)
        finally:
            server.stop()
    sys.stdout.write(f"{found}\n")
    return 1 if found.errors or found.overlaps or found.explicit_checkpoints else 0


if __name__ == "__main__":
    sys.exit(main())
