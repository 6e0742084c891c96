"""Measures the cost of each page of `rq-core web`, with very many jobs in Redis and a very long log.

    scripts/measure/once/run page-cost --log DIR|URL [--jobs N] [--lanes N] [--requests N] [--redis URL]
                                          [--part NAME] [--json FILE]
    scripts/measure/once/run page-cost --fill URL [--jobs N] [--lanes N]      only fills a server

``--log`` is the directory in which ten-million keeps its SQLite file (``--keep``), or the URL of a database with such a
log. Requests over HTTP are more than a second apart, so that no two requests share a read.

The command fails if the median of a page is 150 ms or more. It fails if a page sends Redis too many commands, or if one
of them takes 10 ms. It also fails if a statement reads a large table from one end to the other. Then fifty tabs show
the first page: they may cause no more reads than one tab.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import redis
import uvicorn
from sqlalchemy import Engine, event, text

from rq_core.connections.client import Client
from rq_core.protocol.reads.overview import COMMANDS_MAX
from rq_core.web.access import LocalOnly
from rq_core.web.dashboard import build_site
from rq_core.web.sources import ActingSources
from scripts.measure.once import scrape_cost
from scripts.measure.once.page_drains import SPEED_MIN, drains
from scripts.measure.once.ten_million import full_scans
from sql_audit.store.connection.database import Database
from tests.kit.servers import RedisServer, engines, free_port
from tests.kit.wait import wait_until

MS_MAX: Final = 150.0
OWN_MAX: Final = 27
"""The number of commands that a page may send in addition to the read of all queues. That read has its own limit,
COMMANDS_MAX for each queue."""
COMMAND_MS_MAX: Final = 10.0
"""The highest time (ms) that a command may take, since Redis does nothing else meanwhile."""
SHARED_S: Final = 1.1
"""The time (s) after which requests no longer share an answer."""
QUEUES: Final = ("images", "mail")
"""The queues of the log. The jobs of the second queue are in lanes (groups that the same caps count)."""
TABS: Final = 50
LOOKS_MAX: Final = 1.2
"""The highest allowed number of readings of Redis per second, for all tabs together."""
REDIS_MS_MAX: Final = 5.0
"""The highest time (ms) per second that Redis may take for the commands of all tabs together."""
TAB_S: Final = 2.0
"""The time (s) between two requests of a tab for the same page."""
STEPS: Final = 100
"""The unit in which SQLite's virtual-machine steps are counted."""

PARTS: Final = ("pages", "tabs", "drains")
_ROW: Final = "{:16} {:>8} {:>10} {:>10} {:>10} {:>6} {:>9} {:>9} {:>6} {:>5}"


class Site:
    """The process of the page's web server, and a client for it."""

    def __init__(self, redis_url: str, audit_url: str, now_ms: int) -> None:
        self.port = free_port()
        words = ["--serve", str(self.port), redis_url, audit_url, str(now_ms)]
        self._process = subprocess.Popen([sys.executable, "-m", __spec__.name, *words])
        wait_until(lambda: self.get("/static/icon.svg")[0] == 200, "the page answers", timeout=60)

    def get(self, path: str, **headers: str) -> tuple[int, bytes, str]:
        """Request a page. Return the status, the body and the ETag of the answer."""
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            found = answer.status, answer.read(), answer.headers.get("etag", "")
            connection.close()
        except OSError:
            return 0, b"", ""
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def serve(port: int, redis_url: str, audit_url: str, now_ms: int) -> None:
    """Run the page's web server. Its clock begins at the end of the log."""
    began = time.time()
    sources = ActingSources(redis_url, audit_url=audit_url)
    site = build_site(sources, LocalOnly(), clock=lambda: now_ms / 1000 + time.time() - began)
    uvicorn.run(site, host="127.0.0.1", port=port, log_level="warning", proxy_headers=False)


def pages(control: Any, database: Database, now_ms: int) -> dict[str, str]:
    """Return the addresses to measure, by name. Some show as much data as a page can."""
    plain, laned = QUEUES
    keys = "rqc:{%s}:"
    last = control.lindex(keys % plain + "ready:2", -1) or control.hrandfield(keys % plain + "jobs")
    waits = control.hrandfield(keys % laned + "state")
    with database.readers.connect() as connection:
        ended = connection.execute(
            text("SELECT job_id FROM job_attempt WHERE queue = :q AND claim = 2 LIMIT 1"),
            {"q": laned},
        ).scalar_one()
    middle = now_ms - 86_400_000
    return {
        "overview": "/",
        "queue": f"/queues/{laned}",
        "queue, plain": f"/queues/{plain}",
        "jobs": f"/jobs?queue={plain}",
        "jobs in lanes": f"/jobs?queue={laned}&state=ready",
        "jobs of a task": f"/jobs?queue={laned}&task=none",
        "job, plain": f"/jobs/{plain}/{last}",
        "job in a lane": f"/jobs/{laned}/{waits}",
        "job, ended": f"/jobs/{laned}/{ended}",
        "dead": "/dead",
        "workers": "/workers",
        "log": "/log",
        "log of a queue": f"/log?queue={laned}",
        "at": f"/at?t={middle}",
        "at, a queue": f"/at?t={middle}&queue={laned}",
        "audit": "/audit",
        "schedules": "/schedules",
        "ended": f"/jobs?q=outcome:succeeded+queue:{laned}",
        "ended badly": "/jobs?q=outcome:died",
        "ended, none": f"/jobs?q=outcome:succeeded+queue:{laned}+task:none",
        "ended in a scope": f"/jobs?q=outcome:succeeded+queue:{laned}+scope:tenant%3Dt199",
        "of an id": f"/jobs?q={ended}",
    }


def busy_ms(control: Any) -> float:
    """Return the time (ms) in which Redis has executed commands since its start, by its own statistics."""
    return float(sum(each["usec"] for each in control.info("commandstats").values())) / 1000


def commands(control: Any) -> int:
    """Return the number of commands that Redis has carried out so far, those inside scripts included."""
    return int(control.info("stats")["total_commands_processed"])


def counted(control: Any, ask: Callable[[], object]) -> tuple[int, int]:
    """Return how many commands Redis carries out during a request: those that clients send, and those inside
    scripts.
    """
    found = [0, 0]
    with control.monitor() as monitor:
        ask()
        control.echo("all was asked")
        while (each := monitor.next_command())["command"] != "ECHO all was asked":
            found[each["client_type"] == "lua"] += 1
    return found[0], found[1]


class Statements:
    """Records the SQL statements that a page sends: the rows they return, SQLite's steps, and scans of whole large
    tables.

    The statements that read the overview of the log, which all pages share, are included.
    """

    def __init__(self, redis_url: str, audit_url: str, now_ms: int) -> None:
        self._sources = ActingSources(redis_url, audit_url=audit_url)
        self._now_ms = now_ms
        self._found: list[tuple[str, Any]] = []
        self._database = Database(audit_url)
        event.listen(Engine, "before_cursor_execute", self._note)
        self.of("/workers")  # The first look sums all minutes.

    def _note(self, _c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("SELECT", "WITH")):
            self._found.append((statement, parameters))

    def of(self, path: str) -> tuple[int, int, int, list[str]]:
        """Return four values: the number of statements that a page sends, the rows that they return, SQLite's steps,
        and the scans of large tables in their query plans."""
        from starlette.testclient import TestClient

        site = build_site(self._sources, LocalOnly(), clock=lambda: self._now_ms / 1000)
        self._found.clear()
        client = TestClient(site, base_url="http://localhost", client=("127.0.0.1", 1))
        assert client.get(path, follow_redirects=False).status_code in (200, 303)
        sent, rows, steps, plans = list(self._found), 0, [0], []
        sqlite = self._database.dialect == "sqlite"
        explain = "EXPLAIN QUERY PLAN" if sqlite else "EXPLAIN (COSTS OFF)"

        def step() -> None:
            steps[0] += STEPS

        with self._database.readers.connect() as connection:
            driver: Any = connection.connection.driver_connection
            for statement, parameters in sent:
                if sqlite:
                    driver.set_progress_handler(step, STEPS)
                rows += len(connection.exec_driver_sql(statement, parameters).fetchall())
                if sqlite:
                    driver.set_progress_handler(None, 0)
                plan = connection.exec_driver_sql(f"{explain} {statement}", parameters)
                plans.append([str(row[-1]) for row in plan])
        return len(sent), rows, steps[0], full_scans(self._database, plans)

    def close(self) -> None:
        event.remove(Engine, "before_cursor_execute", self._note)
        self._sources.close()
        self._database.close()


def times(site: Site, control: Any, path: str, requests: int) -> tuple[list[float], list[float]]:
    """Return the duration (ms) of each request, and of the longest Redis command during each request.

    The requests are far enough apart that none uses the data of an earlier one.
    """
    took, longest = [], []
    control.config_set("slowlog-log-slower-than", 0)
    for _ in range(requests):
        time.sleep(SHARED_S)
        control.slowlog_reset()
        began = time.perf_counter()
        status, _, _ = site.get(path)
        took.append(1000 * (time.perf_counter() - began))
        longest.append(max(each["duration"] / 1000 for each in control.slowlog_get(1_000)))
        assert status in (200, 303)
    return took, longest


@contextlib.contextmanager
def tabs(site: Site, many: int, path: str = "/") -> Iterator[list[float]]:
    """Request a page every two seconds from each of ``many`` tabs, as browsers do. Yield the growing list of durations
    (ms).
    """
    stop, took = threading.Event(), list[float]()

    def tab(number: int) -> None:
        tag = ""
        pause = TAB_S * number / many
        while not stop.wait(pause):
            began = time.perf_counter()
            _, _, tag = site.get(path, **({"If-None-Match": tag} if tag else {}))
            took.append(1000 * (time.perf_counter() - began))
            pause = max(0.0, TAB_S - (time.perf_counter() - began))

    threads = [threading.Thread(target=tab, args=(n,)) for n in range(many)]
    for each in threads:
        each.start()
    try:
        yield took
    finally:
        stop.set()
        for each in threads:
            each.join()


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@contextlib.contextmanager
def filled(jobs: int, lanes: int) -> Iterator[str]:
    """Yield the URL of a new Redis server that is filled with jobs."""
    with tempfile.TemporaryDirectory() as directory:
        server = RedisServer(engines()[0], Path(directory)).start()
        try:
            fill(server.url, jobs, lanes)
            yield server.url
        finally:
            server.stop()


def fill(url: str, jobs: int, lanes: int) -> None:
    """Enqueue the jobs on an empty server."""
    with Client(url) as client:
        print(scrape_cost.fill(client, jobs, lanes, QUEUES))


def measure(
    redis_url: str, audit_url: str, requests: int, parts: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Measure some of PARTS. Return all figures, and those that miss their bounds."""
    figures: dict[str, Any] = {}
    short: list[str] = []
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(contextlib.closing(Database(audit_url)))
        control: Any = redis.Redis.from_url(redis_url, decode_responses=True)
        stack.callback(control.close)
        with database.readers.connect() as connection:
            ends = connection.execute(text("SELECT MIN(at_ms) FROM mirror_cursor")).scalar_one()
        site = stack.enter_context(contextlib.closing(Site(redis_url, audit_url, ends)))
        if "pages" in parts:
            statements = stack.enter_context(
                contextlib.closing(Statements(redis_url, audit_url, ends))
            )
            figures |= _of_pages(
                site, control, statements, pages(control, database, ends), requests
            )
            short += _short_of_pages(figures)
        if "tabs" in parts:
            figures["tabs"] = {many: looks(site, control, many) for many in (1, TABS)}
            time.sleep(SHARED_S)
            look = sum(counted(control, functools.partial(site.get, "/")))
            print(f"one look: {look} commands, those in scripts too")
            if figures["tabs"][TABS]["commands_s"] > LOOKS_MAX * look:
                short.append(f"{TABS} tabs cost more than a look of {look} commands a second")
            if figures["tabs"][TABS]["redis_ms_s"] > REDIS_MS_MAX:
                short.append(
                    f"{TABS} tabs keep Redis busy for more than {REDIS_MS_MAX} ms of each second"
                )
        if "drains" in parts:
            words = [sys.executable, "-m", __spec__.name, "--tabs", str(site.port)]
            figures["drains"] = drains(words, redis_url)
            if figures["drains"]["speed"] < SPEED_MIN:
                short.append("drains are slower with tabs")
    return figures, short


def _of_pages(
    site: Site, control: Any, statements: Statements, paths: dict[str, str], requests: int
) -> dict[str, dict[str, Any]]:
    figures = {}
    heads = (
        "page", "commands", "in scripts", "longest ms", "statements", "rows", "steps", "median ms", "p95",
    )  # fmt: skip
    print(_ROW.format(*heads, "KB"))
    for name, path in paths.items():
        _, body, _ = site.get(path)
        time.sleep(SHARED_S)
        asked, inside = counted(control, functools.partial(site.get, path))
        sent, rows, steps, scans = statements.of(path)
        took, in_redis = times(site, control, path, requests)
        middle, longest = statistics.median(took), statistics.median(in_redis)
        late = percentile(took, 0.95)
        cells = (
            f"{asked}", f"{inside:,}", f"{longest:.1f}", f"{sent}", f"{rows:,}", f"{steps:,}", f"{middle:.1f}",
            f"{late:.1f}", f"{len(body) / 1000:.0f}",
        )  # fmt: skip
        print(_ROW.format(name, *cells), flush=True)
        figures[name] = {
            "commands": asked, "in_scripts": inside, "longest_ms": round(longest, 1), "statements": sent,
            "rows": rows, "steps": steps, "median_ms": round(middle, 1), "p95_ms": round(late, 1), "scans": scans,
        }  # fmt: skip
    return figures


def _short_of_pages(figures: dict[str, dict[str, Any]]) -> list[str]:
    short = []
    for name, found in figures.items():
        if found["median_ms"] >= MS_MAX:
            short.append(f"{name}: the median is {found['median_ms']:.0f} ms")
        if found["commands"] > COMMANDS_MAX * len(QUEUES) + OWN_MAX:
            short.append(f"{name}: {found['commands']} Redis commands")
        if found["longest_ms"] >= COMMAND_MS_MAX:
            short.append(f"{name}: Redis is busy for {found['longest_ms']} ms with one command")
        short += [f"{name}: {scan}" for scan in found["scans"]]
    return short


def looks(site: Site, control: Any, many: int, seconds: float = 10.0) -> dict[str, float]:
    """Let ``many`` browser tabs show the first page for ``seconds``. Return the load that they cause in Redis (commands
    per second, ms per second), the answers per second, and the tabs' waiting times (ms)."""
    with tabs(site, many) as took:
        time.sleep(2 * TAB_S)
        took.clear()
        before, busy, began = commands(control), busy_ms(control), time.monotonic()
        time.sleep(seconds)
        lasted = time.monotonic() - began
        rate, busy = (commands(control) - before) / lasted, (busy_ms(control) - busy) / lasted
        found = list(took)
    said = {
        "commands_s": round(rate, 1),
        "redis_ms_s": round(busy, 2),
        "answers_s": round(len(found) / seconds, 1),
        "median_ms": round(statistics.median(found), 1),
        "p95_ms": round(percentile(found, 0.95), 1),
    }
    print(f"{many} tabs: {said}")
    return said


def look_on(port: int) -> None:
    """Run fifty browser tabs until standard input ends. A separate process runs this function."""
    site = Site.__new__(Site)
    site.port = port
    with tabs(site, TABS) as took:
        wait_until(lambda: len(took) > TABS, "each tab has looked")
        print("they look", flush=True)
        sys.stdin.read()


def main() -> int:
    """Measure, print and store the figures. Return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--lanes", type=int, default=50_000)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--log", help="where ten-million kept its SQLite file, or the URL of a log")
    parser.add_argument("--redis", help="a server that --fill has filled")
    parser.add_argument("--fill", metavar="URL", help="only fill this server")
    parser.add_argument("--part", action="append", choices=PARTS, help="by default all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tabs", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        port, redis_url, audit_url, now_ms = given.serve
        serve(int(port), redis_url, audit_url, int(now_ms))
        return 0
    if given.tabs:
        look_on(given.tabs)
        return 0
    if given.fill:
        fill(given.fill, given.jobs, given.lanes)
        return 0
    if given.log is None:
        parser.error(
            "give --log DIR: scripts/measure/once/run ten-million --database sqlite --keep DIR makes it"
        )
    log = given.log if "://" in given.log else f"sqlite:///{Path(given.log) / 'audit.db'}"
    own = filled(given.jobs, given.lanes)
    with contextlib.nullcontext(given.redis) if given.redis else own as url:
        figures, short = measure(url, log, given.requests, given.part or PARTS)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=2) + "\n")
    for each in short:
        print(f"FELL SHORT: {each}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
