"""Measures rq-core, and compares it with its targets and with floors (the same work without a queue). With --peers,
also compares it with other queues."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
sys.path.insert(0, str(Path(__file__).parents[2] / "peers"))
sys.path.insert(0, str(Path(__file__).parent / "contenders"))
sys.path.insert(0, str(Path(__file__).parent))

import end_to_end
import inboxes
import keeping
import mirroring
import peers
import redis_time
import report
import saturated
import side_by_side
import stages
import start_up
import targets
import throughput
from figures import Figures, facts
from mirroring import Databases
from sizes import SIZES, Sizes
from stage import BARE, OURS, Failed, Stage, stage

from rq_core.connections.client import Client
from tests.kit.servers import DurablePostgres

Part = Callable[[], Mapping[str, float]]


def producing(stage: Stage, sizes: Sizes) -> Iterator[tuple[str, Part]]:
    """Yield the measurements of producers: rq-core's enqueues, and the same bytes sent by redis-py without a queue (the
    floor).
    """

    def bulk() -> dict[str, float]:
        return {
            "enqueue_bulk_per_s": throughput.enqueue_bulk(stage, OURS, sizes.bulk),
            "bulk_floor_per_s": throughput.enqueue_bulk(stage, BARE, sizes.bulk),
            "pipeline_floor_per_s": throughput.enqueue_bulk(stage, BARE, sizes.bulk, "pipeline"),
        }

    def one() -> dict[str, float]:
        ours = throughput.enqueue_one(stage, OURS, sizes.one)
        floor = throughput.enqueue_one(stage, BARE, sizes.one)
        return {
            "enqueue_one_per_s": ours,
            "evalsha_floor_per_s": floor,
            "enqueue_one_over_floor": floor / ours,
        }

    yield "enqueue in bulk", bulk
    yield "enqueue one at a time", one


def working(stage: Stage, sizes: Sizes) -> Iterator[tuple[str, Part]]:
    """Yield the measurements of workers: jobs per second when a queue is emptied (drains), latency, several workers,
    and an idle worker."""

    def drain() -> dict[str, float]:
        return {
            "drain_async_per_s": throughput.drain(stage, OURS, sizes.drain)[0],
            "drain_threads_per_s": throughput.drain(stage, OURS, sizes.drain, "threads")[0],
            "drain_async_2w_per_s": throughput.drain(stage, OURS, 2 * sizes.drain, workers=2)[0],
            "drain_floor_per_s": throughput.drain(stage, BARE, sizes.drain, "pipeline")[0],
        }

    def capped() -> dict[str, float]:
        return {
            f"drain_{kind}_per_s": throughput.drain(stage, OURS, sizes.drain, kind)[0]
            for kind in ("one_cap", "two_caps", "binding")
        }

    def latency() -> dict[str, float]:
        ours = throughput.latency_ms(stage, OURS, sizes.paced)
        wake = throughput.latency_ms(stage, BARE, sizes.paced, "wake")
        trip = 1e3 / throughput.enqueue_one(stage, BARE, sizes.one)
        return {
            "latency_p50_ms": throughput.percentile(ours, 0.5),
            "latency_p99_ms": throughput.percentile(ours, 0.99),
            "latency_floor_ms": throughput.percentile(wake, 0.5) + 2 * trip,
        }

    def scaling() -> dict[str, float]:
        return {
            f"scaling_{kind}_{workers}w_percent": throughput.scaling(
                stage, kind, workers, sizes.scaled
            )
            for kind in throughput.JOB_S
            for workers in ((2, 4) if sizes.thorough else (2,))
        }

    yield "drain", drain
    if sizes.thorough:
        yield "drain under caps", capped
    yield "latency", latency
    if sizes.scaled:
        yield "several workers", scaling
    yield "idle worker", lambda: keeping.idle(stage, sizes.idle_s)


def server_side(stage: Stage, sizes: Sizes, figures: Figures) -> Iterator[tuple[str, Part]]:
    """Yield the measurements of Redis: its time and its memory per job."""

    def redis_us() -> dict[str, float]:
        stage.empty()
        with Client(stage.url) as client:
            found = {n: v[0] for n, v in redis_time.measure(client, sizes.redis, 1).items()}
        return {**found, **redis_time.names(found)}

    def turns() -> dict[str, float]:
        stage.empty()
        with Client(stage.url) as client:
            return saturated.measure(client, sizes.redis)

    yield "Redis' time", redis_us
    yield "Redis under turns of one", turns
    yield "Redis' memory", lambda: keeping.memory(stage, sizes.memory)
    # Filling the server takes long, and its own time hardly differs between repeats.
    if "depth_ratio" not in figures.values:
        yield "depth", lambda: keeping.depth(stage, sizes)


def auditing(stage: Stage, sizes: Sizes, databases: Databases) -> Iterator[tuple[str, Part]]:
    """Yield the measurements of the mirror: alone compared with plain SQL, and together with a producer and a
    worker."""

    def mirror() -> dict[str, float]:
        stage.empty()
        with Client(stage.url) as client:
            found = mirroring.measure(client, databases, sizes.mirror, 1, shapes=sizes.thorough)
        return {name: values[0] for name, values in found.items()}

    yield "mirror", mirror
    for dialect in databases.dialects:
        yield (
            f"end to end, {dialect}",
            lambda d=dialect: {  # type: ignore[misc]
                f"end_to_end_{d}_per_s": end_to_end.measure(stage, databases, d, sizes.end_to_end)
            },
        )


def relaying(stage: Stage, sizes: Sizes, databases: Databases) -> Iterator[tuple[str, Part]]:
    """Yield the measurements of inboxes: the jobs per second that a relay passes to Redis, and the time from a COMMIT
    to the handler."""
    made = inboxes.Inboxes(databases)
    for dialect in made.dialects:
        yield (
            f"inbox, {dialect}",
            lambda d=dialect: inboxes.relayed(stage, made, d, sizes.relayed),  # type: ignore[misc]
        )
        for hooked, jobs in ((True, sizes.paced), (False, sizes.polled)):
            yield (
                f"inbox, {dialect}, from commit to handler, {'with' if hooked else 'without'} hook",
                lambda d=dialect, h=hooked, j=jobs: inboxes.latency(stage, made, d, j, hooked=h),  # type: ignore[misc]
            )


PARTS = ("enqueue", "work", "redis", "audit", "inbox", "start")
FAR = "far"
"""The part of the benchmark that measures rq-core and its peers alternately, near and far from the server."""


def measure(stage: Stage, sizes: Sizes, only: list[str], figures: Figures) -> None:
    """Make each measurement once in each repeat, so that a slow moment of the machine affects all of them. ``only``:
    the names of the parts of the benchmark to measure."""
    place = stage.place / "audit"
    place.mkdir()
    postgres = DurablePostgres().start() if {"audit", "inbox"} & set(only) else None
    try:
        databases = Databases(place, postgres)
        for repeat in range(sizes.repeats):
            parts: dict[str, Iterator[tuple[str, Part]]] = {
                "enqueue": producing(stage, sizes),
                "work": working(stage, sizes),
                "redis": server_side(stage, sizes, figures),
                "audit": auditing(stage, sizes, databases),
                "inbox": relaying(stage, sizes, databases),
                "start": iter([("start", start_up.measure)] * (sizes.starts if not repeat else 1)),
            }
            for name in only:
                for what, part in parts[name]:
                    _say(f"{repeat + 1}/{sizes.repeats} {what}")
                    try:
                        figures.add(part())
                    except Failed as failure:
                        figures.failures[what] = str(failure)
    finally:
        if postgres is not None:
            postgres.stop()


def _say(what: str) -> None:
    print(f"  {time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def show(document: Mapping[str, Any]) -> None:
    """Print the tables of all measured figures."""
    for said, rows in (
        ("promised", targets.promised_rows(document)),
        ("aimed at", targets.aimed_rows(document)),
    ):
        print(f"\n{'':42} {said:>44} {'median':>16} {'spread':>22}")
        for what, target, found, spread, note in rows:
            print(f"{what:42} {target:>44} {found:>16} {spread:>22}  {note}")
    print("\nfloors of the same run")
    for what, found, spread in targets.floor_rows(document):
        print(f"  {what:64} {found:>12} {spread:>22}")
    for row in targets.inbox_rows(document):
        print(f"  {row[0]:64} {row[1]:>10} best {row[2]:>12} median {row[3]:>12} {row[4]:>22}")
    for name, peer in document["peers"].items():
        told = ", ".join(f"{figure} {targets.number(value)}" for figure, value in peer.items())
        print(f"  {name}: {told}")
    for line in report.side_by_side(document):
        print(line)
    for what, why in document["failures"].items():
        print(f"  not measured: {what}: {why}")


def asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/measure/bench", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="within a minute, one repeat")
    size.add_argument("--tiny", action="store_true", help="seconds: whether it works, not how fast")
    parser.add_argument("--repeats", type=int, help="how often everything is measured")
    parser.add_argument(
        "--only",
        choices=(*PARTS, FAR, "peers"),
        action="append",
        help="these parts; may be given again",
    )
    parser.add_argument(
        "--peers", action="store_true", help="also other queues, installed in the cache folder"
    )
    parser.add_argument(
        "--redis", metavar="URL", help="an empty server; it is emptied again and again"
    )
    parser.add_argument(
        "--engine", choices=("redis7", "valkey"), help="redis7 where it is installed"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument(
        "--report",
        action="store_true",
        help="renew the tables of docs/performance.md and README.md",
    )
    parser.add_argument(
        "--from",
        type=Path,
        dest="source",
        metavar="FILE",
        help="measure nothing: take the figures of an earlier run",
    )
    return parser.parse_args()


def main() -> None:
    given = asked()
    if given.source:
        document = json.loads(given.source.read_text())
        show(document)
        if given.report:
            told(document)
        return
    name = "quick" if given.quick else "tiny" if given.tiny else "full"
    sizes = SIZES[name]
    if given.repeats:
        sizes = replace(sizes, repeats=given.repeats)
    # What a mirror says of its lag is not wanted here.
    logging.disable(logging.WARNING)
    # So that servers and workers end with the run, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures = Figures()
    with stage(given.redis, given.engine) as made:
        where = facts(made.version(), name)
        only = [part for part in PARTS if part in (given.only or PARTS)]
        given.peers = given.peers or "peers" in (given.only or ())
        if only:
            measure(made, sizes, only, figures)
        others = peers.installed(figures, _say) if given.peers else {}
        if given.peers and (not given.only or "peers" in given.only):
            peers.measure(made, sizes, figures, others, _say)
        if not given.only or FAR in given.only:
            side_by_side.measure(made, sizes, figures, others, _say)
        document = figures.document(where)
        if "redis" in only:
            _say("where a microsecond goes")
            document["stages"] = stages.measure(made, sizes.drain)
    show(document)
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    if given.json:
        given.json.write_text(text)
    if given.report:
        told(document)


def told(document: Mapping[str, Any]) -> None:
    """Write the new figures to the file of figures and into the documents.

    If only inboxes, or only rq-core and its peers alternately, were measured, the other figures in the file are kept.
    """
    if "enqueue_bulk_per_s" not in document:
        apart = {"inbox": "inbox_sqlite_per_s", "far": "far_ping_ms"}
        found = {name: document for name, figure in apart.items() if figure in document}
        document = {**json.loads(report.FIGURES.read_text()), **found} if found else document
    report.FIGURES.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    for path in report.write(document):
        print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
