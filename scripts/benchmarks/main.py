"""Jobs per second: enqueued, drained, mirrored; each the median of interleaved repeats, with its spread."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import redis_time
from tasks import CAPPED, app, noop_async, noop_thread

from rq_core import server
from rq_core.client import Client
from rq_core.worker import Worker, WorkerOptions
from sql_audit import queries, run
from sql_audit.database import Database

TEXT = "0123456789012345678901234567890123456789"


def timed(jobs: int, work: Callable[[], object]) -> float:
    """How many jobs a second ``work`` does."""
    started = time.perf_counter()
    work()
    return jobs / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--redis", default=None)
    parser.add_argument("--only", choices=("workers", "redis"), default=None)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rq-core-bench-") as name:
        place = Path(name)
        url = options.redis or server.ensure(place / "server")
        try:
            figures: dict[str, list[float]] = {}
            if options.only != "redis":
                figures |= measure(url, place, options.jobs, options.repeats)
            spent: dict[str, list[float]] = {}
            if options.only != "workers":
                with Client(url) as client:
                    spent = redis_time.measure(client, options.jobs, options.repeats)
        finally:
            if options.redis is None:
                server.stop(place / "server")
    for figure, values in figures.items():
        print(
            f"{figure:36} {statistics.median(values):>10,.0f}  ({min(values):,.0f} to {max(values):,.0f})"
        )
    for line in redis_time.table(spent) if spent else ():
        print(line)
    figures |= spent
    if options.json:
        medians = {figure: round(statistics.median(v), 1) for figure, v in figures.items()}
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


def measure(url: str, place: Path, jobs: int, repeats: int) -> dict[str, list[float]]:
    """All figures, repeat by repeat so that a slow moment of the machine hits all alike."""
    figures: dict[str, list[float]] = defaultdict(list)
    app.connect_to(url)
    client = Client(url)
    for repeat in range(repeats):
        for kind, task in (("async", noop_async), ("threads", noop_thread)):
            specs = (task.job(number=n, text=TEXT) for n in range(jobs))
            figures["enqueue_bulk_per_s"].append(timed(jobs, lambda s=specs: app.enqueue_many(s)))
            figures[f"drain_{kind}_per_s"].append(timed(jobs, drain_queue))
        for kind, capped in CAPPED.items():
            specs = (capped.job(number=n, text=TEXT) for n in range(jobs))
            figures[f"enqueue_{kind}_per_s"].append(
                timed(jobs, lambda s=specs: app.enqueue_many(s))
            )
            queue = capped.options.queue
            rate = timed(jobs, lambda q=queue: drain_queue(q))
            if left := client.run(client.operations.ask([["HLEN", f"rqc:{{{queue}}}:state"]]))[0]:
                raise SystemExit(f"{queue}: {left} jobs were left")
            figures[f"drain_{kind}_per_s"].append(rate)
            share = 100 * rate / figures["drain_async_per_s"][-1]
            figures[f"drain_{kind}_percent_of_uncapped"].append(share)
        one = max(jobs // 20, 100)
        figures["enqueue_one_per_s"].append(
            timed(one, lambda n=one: [noop_async.enqueue(number=i, text=TEXT) for i in range(n)])
        )
        drain_queue()
        audit = f"sqlite:///{place / f'audit-{repeat}.db'}"
        mirror(client, audit)
        app.enqueue_many(noop_async.job(number=n, text=TEXT) for n in range(jobs))
        drain_queue()
        figures["mirror_sqlite_events_per_s"].append(
            timed(3 * jobs, lambda a=audit: mirror(client, a))
        )
        database = Database(audit)
        client.detach("bench", queries.audit_id(database))
        database.close()
    client.close()
    app.close()
    return figures


def mirror(client: Client, audit: str) -> None:
    """Mirror until nothing is left."""
    run.run(client, audit, stop=threading.Event(), queues=["bench"], once=True)


def drain_queue(queue: str = "bench") -> None:
    """Run one worker until nothing is left."""
    worker = Worker(app, WorkerOptions(queues=(queue,), concurrency=100, burst=True))
    try:
        import uvloop
    except ImportError:
        asyncio.run(worker.run())
    else:
        uvloop.run(worker.run())


if __name__ == "__main__":
    main()
