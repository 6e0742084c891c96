"""Measures queries of a log of ten million events: see scripts/measure/once/run ten-million.

A mirror writes a simulated log (scripts/measure/once/long_log.py). Then this module runs every everyday query of
docs/how-to/audit-log.md. It also reads a job's history, and runs the commands `why` and `at` and the report of a
minute. It reports the time and the query plan of each. In the end, `audit verify` reads the whole log.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import event, text

from scripts.measure.once.long_log import EPOCH, LongLog
from sql_audit.mirror import service
from sql_audit.queries import history, moments, waits, window
from sql_audit.store import migrate, partitions
from sql_audit.store.connection.database import Database
from tests.kit.processes import ROOT, python
from tests.kit.servers import DurablePostgres

REPEATS: Final = 5
VERIFY: Final = ("rq_core.cli", "audit", "verify", "--json")
LIMIT_MS: Final = 200
BIG: Final = ("job", "job_attempt", "job_event")

_SQLITE_SCAN: Final = re.compile(r"^SCAN (\w+)(?! USING (?:COVERING )?INDEX)")
_ALIASES: Final = {"a": "job_attempt", "j": "job", "e": "job_event"}
_POSTGRES_SCAN: Final = re.compile(r"Seq Scan on (job(?:_attempt|_event\w*)?)\b")


@functools.cache
def everyday() -> list[tuple[str, str]]:
    """Return the queries of docs/how-to/audit-log.md, by title."""
    readme = (ROOT / "docs" / "how-to" / "audit-log.md").read_text()
    pattern = r"^### (\d+\. [^\n]*)\n(?:(?!###).)*?```sql\n(.*?)```"
    found = re.findall(pattern, readme, re.MULTILINE | re.DOTALL)
    return [(title.strip(), query.strip().rstrip(";")) for title, query in found]


@dataclass(frozen=True)
class Question:
    """A title, and a function that reads the audit log."""

    title: str
    ask: Callable[[Database], object]


@dataclass(frozen=True)
class Answer:
    """How long a read of the audit log took (ms): the first time, and the median of later times. Also the query
    plans."""

    title: str
    first_ms: float
    median_ms: float
    plans: list[list[str]]
    scans: list[str]
    """The lines of the plans that read a large table from one end to the other."""


def build(database: Database, events: int) -> int:
    """Let a mirror write a log of about ``events`` events, unless the database has a log.

    Return the number of events that it wrote; 0 if there is a log.
    """
    migrate.upgrade_schema(database)
    if history.watermarks(database.readers):
        return 0
    if database.dialect == "postgresql":
        month = partitions.month_of(EPOCH)
        with database.writing() as connection:
            assert connection is not None
            if month not in partitions.partitions(connection):
                partitions.create_partition(connection, month)
            connection.commit()
    with service.rare_collections():
        done = service.run_mirror(LongLog(events), database, stop=threading.Event(), once=True)
    if database.dialect == "postgresql":
        with database.engine.connect().execution_options(
            isolation_level="AUTOCOMMIT"
        ) as connection:
            connection.execute(text("VACUUM ANALYZE"))
    return done.events


def questions(database: Database) -> list[Question]:
    """Return what to measure: a job's history and waits, a past moment, a report, and the documented queries."""
    job_id, at_ms = _a_retried_job(database)

    def ask(query: str) -> Callable[[Database], object]:
        def rows(database: Database) -> object:
            with database.readers.connect() as connection:
                return connection.execute(text(query)).all()

        return rows

    asked = [
        Question("audit history JOB", lambda d: history.history(d.readers, job_id)),
        Question("audit why JOB", lambda d: waits.why(d.readers, job_id)),
        Question("audit at TIME", lambda d: moments.at(d.readers, "mail", at_ms)),
        Question(
            "audit report of a minute",
            lambda d: window.report_within(d.readers, since_ms=at_ms, until_ms=at_ms + 60_000),
        ),
    ]
    return asked + [Question(title, ask(query)) for title, query in everyday()]


def _a_retried_job(database: Database) -> tuple[str, int]:
    """Return the id of a job that failed once, from the middle of the log, and the time of its first claim (Unix
    ms).
    """
    with database.readers.connect() as connection:
        middle = connection.execute(
            text("SELECT epoch, seq / 2 AS seq FROM mirror_cursor WHERE queue = 'mail'")
        ).one()
        found = connection.execute(
            text(
                "SELECT e.job_id, a.claimed_at_ms FROM job_event e JOIN job_attempt a "
                "ON a.job_id = e.job_id AND a.queue = e.queue WHERE e.queue = 'mail' "
                "AND (e.epoch, e.seq) > (:epoch, :seq) AND e.type = 'retried' "
                "ORDER BY e.epoch, e.seq, e.ordinal, a.claimed_at_ms LIMIT 1"
            ),
            middle._asdict(),
        ).one()
    return str(found.job_id), int(found.claimed_at_ms)


def answer(database: Database, question: Question, *, explain: bool = True) -> Answer:
    """Run a question (a read of the log) REPEATS + 1 times. With ``explain``, run it once more to get the query
    plans."""
    spent = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        question.ask(database)
        spent.append(1000 * (time.perf_counter() - started))
    plans = plans_of(database, question) if explain else []
    return Answer(
        question.title, spent[0], statistics.median(spent[1:]), plans, full_scans(database, plans)
    )


def plans_of(database: Database, question: Question, *, no_scans: bool = False) -> list[list[str]]:
    """Return the query plan of each statement that a question runs.

    With ``no_scans``, PostgreSQL avoids sequential scans even of small tables, unless there is no other way.
    """
    statements: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "WITH")):
            statements.append((statement, parameters))

    with _listening(database, note):
        question.ask(database)
    sqlite = database.dialect == "sqlite"
    explain = "EXPLAIN QUERY PLAN " if sqlite else "EXPLAIN (COSTS OFF) "
    plans = []
    with database.readers.connect() as connection:
        if no_scans and not sqlite:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        for statement, parameters in dict.fromkeys((s, repr(p)) for s, p in statements):
            bound = next(p for s, p in statements if (s, repr(p)) == (statement, parameters))
            rows = connection.exec_driver_sql(explain + statement, bound)
            plans.append([str(row[-1]) for row in rows])
    return plans


@contextlib.contextmanager
def _listening(database: Database, note: Callable[..., None]) -> Iterator[None]:
    event.listen(database.readers, "before_cursor_execute", note)
    try:
        yield
    finally:
        event.remove(database.readers, "before_cursor_execute", note)


def full_scans(database: Database, plans: list[list[str]]) -> list[str]:
    """Return the lines of the plans that read a large table from one end to the other."""
    found = []
    for line in (line for plan in plans for line in plan):
        pattern = _SQLITE_SCAN if database.dialect == "sqlite" else _POSTGRES_SCAN
        match = pattern.search(line)
        table = _ALIASES.get(match[1], match[1]) if match else ""
        large = table in BIG or (table.startswith("job_event_") and not _empty(database, table))
        if large:
            found.append(line.strip())
    return found


def _empty(database: Database, partition: str) -> bool:
    """Return whether a partition has no rows, like the partitions of future months. A scan of an empty partition costs
    nothing."""
    with database.readers.connect() as connection:
        return connection.exec_driver_sql(f"SELECT 1 FROM {partition} LIMIT 1").first() is None  # noqa: S608 - a partition that the database named


def verified(database: Database) -> tuple[str, float, float]:
    """Run ``audit verify`` in a separate process. Return its verdict, its seconds, and its peak memory (MB)."""
    url = database.address.render_as_string(hide_password=False)
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="rq-core-") as place,
        python(*VERIFY, "--audit", url, log=Path(place) / "verify.log") as process,
    ):
        usage = process.resources()
        verdict = json.loads(process.said())["verdict"]
    return verdict, time.perf_counter() - started, usage.ru_maxrss / 1024


@contextlib.contextmanager
def opened(kind: str, place: Path) -> Iterator[Database]:
    """Yield an audit database: an SQLite file in ``place``, or a PostgreSQL server that runs during the block."""
    if kind == "sqlite":
        database = Database(str(place / "audit.db"))
        yield database
        database.close()
        return
    server = DurablePostgres().start()
    try:
        database = Database(server.url(server.create_database()))
        yield database
        database.close()
    finally:
        server.stop()


def report(database: Database, events: int, answers: list[Answer]) -> list[str]:
    """Return a Markdown table of the times, and the query plans."""
    name = "SQLite" if database.dialect == "sqlite" else "PostgreSQL"
    lines = [
        f"## {name}, {events:,} events",
        "",
        "| question | first, ms | then, ms |",
        "|---|---|---|",
    ]
    lines += [f"| {a.title} | {a.first_ms:.1f} | {a.median_ms:.1f} |" for a in answers]
    for a in answers:
        lines += ["", f"### {name}: {a.title}", "", "```"]
        for plan in a.plans:
            lines += [*plan, ""]
        lines[-1:] = ["```"]
    return [*lines, ""]


def say(line: str) -> None:
    """Print the text and flush it, because the next step takes long."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--database", choices=("sqlite", "postgres"), action="append")
    parser.add_argument("--keep", type=Path, help="where SQLite's file stays, or is already")
    parser.add_argument("--doc", type=Path, help="write the times and the plans there")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--no-verify", action="store_true")
    options = parser.parse_args()
    slow, figures, lines = 0, {}, []
    with contextlib.ExitStack() as stack:
        place = options.keep or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="rq-core-"))
        )
        place.mkdir(parents=True, exist_ok=True)
        for kind in options.database or ("sqlite", "postgres"):
            with opened(kind, place) as database:
                started = time.perf_counter()
                build(database, options.events)
                spent = time.perf_counter() - started
                events = sum(mark.events for mark in history.watermarks(database.readers))
                say(f"{kind}: {events:,} events, made in {spent:.0f} s")
                gc.collect()
                answers = [answer(database, question) for question in questions(database)]
                for a in answers:
                    late = a.median_ms > LIMIT_MS or a.scans
                    slow += bool(late)
                    say(
                        f"  {a.title:60} {a.first_ms:8.1f} {a.median_ms:8.1f} ms"
                        f"{'  TOO SLOW' if a.median_ms > LIMIT_MS else ''} {'; '.join(a.scans)}"
                    )
                    figures[f"{kind}: {a.title}"] = round(a.median_ms, 1)
                lines += report(database, events, answers)
                if not options.no_verify:
                    verdict, seconds, peak = verified(database)
                    told = f"{verdict}, {seconds:.0f} s, {events / seconds:,.0f} events/s, peak {peak:.0f} MB"
                    say(f"  audit verify: {told}")
                    lines += [f"`audit verify`: {told}.", ""]
                    figures |= {
                        f"{kind}_verify_s": round(seconds, 1),
                        f"{kind}_verify_peak_mb": round(peak),
                    }
    if options.doc:
        head = [
            "<!-- Written by scripts/measure/once/run ten-million --doc. -->",
            "",
            "# Everyday questions to a long log",
            "",
            "How long the queries of [the audit log](../how-to/audit-log.md#everyday-queries) and",
            "three commands take; and the plans.",
            "",
            "Three queues in six days (`scripts/measure/once/long_log.py`), brought into each database by the",
            f"mirror itself, and analysed in PostgreSQL. The first time, and the median of {REPEATS} after it.",
            "",
        ]
        options.doc.write_text("\n".join(head + lines))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
