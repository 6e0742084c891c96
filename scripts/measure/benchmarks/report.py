"""The tables of docs/performance.md and README.md, written between markers from the figures of a run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import targets

ROOT = Path(__file__).parents[3]
FIGURES = ROOT / "scripts" / "measure" / "benchmarks" / "figures.json"
"""The file with the figures of the run that the documents describe."""

PEER_COLUMNS = {
    "enqueue_one_per_s": "enqueue one/s",
    "enqueue_bulk_per_s": "in bulk/s",
    "drain": "drain/s",
    "drain_2w": "two workers/s",
    "latency_p50_ms": "p50 ms",
    "latency_p99_ms": "p99 ms",
    "redis_bytes_per_job": "B/job",
}
BESIDE_COLUMNS = (
    {
        "near_p50_ms": "near p50 ms",
        "near_p99_ms": "near p99 ms",
        "near_call_ms": "near call ms",
        "far_p50_ms": "far p50 ms",
        "far_p99_ms": "far p99 ms",
        "far_call_ms": "far call ms",
        "far_drain_per_s": "far drain/s",
    },
    {
        "waiting_per_s": "1,000 places/s",
        "idle_rss_mb": "idle RSS MB",
        "idle_pss_mb": "idle PSS MB",
        "busy_rss_mb": "busy RSS MB",
        "busy_pss_mb": "busy PSS MB",
    },
)
"""The columns of the two tables that compare rq-core and its peers, measured alternately."""
README_SENTENCES = {
    "far_p50_ms": "With a round trip of 2 ms to Redis, a handler begins {} ms after the enqueue (p50; {})",
    "far_drain_per_s": "and one worker drains {} jobs/s ({})",
    "waiting_per_s": "With handlers that wait for 10 ms, and 1,000 places, it runs {} jobs/s ({})",
    "idle_pss_mb": "An idle worker has {} MB of memory (PSS; {})",
    "busy_pss_mb": "and a busy one {} MB ({})",
}
"""The parts of README's sentences about the run in which the queues were measured alternately."""
NOTES = {
    "rq-core": "rq-core (log, caps, replay safety)",
    "huey": "huey (acknowledges nothing)",
    "rq": "rq (SimpleWorker)",
}


README_PEERS = ("rq-core", "blitzq", "dramatiq", "rq")
"""The rows of the first table in README: rq-core, the fastest other queue, and two queues that many people know."""
README_FAR_PEERS = ("taskiq", "blitzq", "dramatiq", "rq")
"""The peers in README's sentences about the alternating run. One of them is a queue that is also fast far from
Redis."""


def write(document: Mapping[str, Any]) -> list[Path]:
    """Replace the tables between the markers in the documents. Return the changed files."""
    parts = {
        "facts": [_facts(document)],
        "promised": _table(
            ("what", "promised", "median", "spread", "held by"), targets.promised_rows(document)
        ),
        "aimed": _table(("what", "aimed at", "median", "spread", ""), targets.aimed_rows(document)),
        "floors": _table(("floor", "median", "spread"), targets.floor_rows(document)),
        "inbox": _inbox(document),
        "redis": _redis(document),
        "microsecond": _stages(document),
        "peers": _peers(document),
        "far": side_by_side(document),
        "far-short": _far_short(document),
        "peers-short": _peers(document, README_PEERS),
    }
    tables = {part: "\n".join(lines) for part, lines in parts.items()}
    changed = []
    for name in ("docs/performance.md", "README.md"):
        path = ROOT / name
        before = path.read_text()
        after = before
        for part, table in tables.items():
            if table:
                after = between(after, part, table)
        if after != before:
            path.write_text(after)
            changed.append(path)
    return changed


def between(text: str, part: str, what: str) -> str:
    """Return the text with ``what`` between the markers of ``part``. A text without these markers is returned
    unchanged."""
    begin, end = f"<!-- bench: {part} -->", f"<!-- bench: end {part} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n{what}\n{end}", text)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield f"| {' | '.join(head)} |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _facts(document: Mapping[str, Any]) -> str:
    facts = document["facts"]
    # How often a start is measured is another number.
    repeats = statistics.mode(document["repeats"].values() or (0,))
    return (
        f"{facts['when']}, commit {facts['commit']}, `scripts/measure/bench` ({facts['sizes']}, {repeats} repeats): "
        f"{facts['redis']}, Python {facts['python']}, {facts['cores']} cores ({facts['processor']}), "
        f"load {facts['load_before']} before the run."
    )


def _inbox(document: Mapping[str, Any]) -> Iterator[str]:
    run = document.get("inbox", document)
    if "inbox_sqlite_per_s" not in run:
        return
    yield from (_facts(run), "")
    yield from _table(("what", "aimed at", "best", "median", "spread"), targets.inbox_rows(run))


def _redis(document: Mapping[str, Any]) -> Iterator[str]:
    kinds = {
        "uncapped": "no cap", "one_cap": "one cap, never reached",
        "two_caps": "two caps, never reached", "binding": "two caps that always bind",
    }  # fmt: skip
    if "redis_us_uncapped_batch_100" not in document:
        return iter(())

    def rows() -> Iterator[tuple[str, ...]]:
        for batch in (100, 10, 1):
            for kind, said in kinds.items():
                name = f"redis_us_{kind}_batch_{batch}"
                parts = [document[f"{name}_{s}"] for s in ("enqueue", "claim", "complete")]
                yield (str(batch), said, *(f"{p:.1f}" for p in parts), f"{document[name]:.1f}")

    return _table(("batch", "", "enqueue", "claim", "complete", "µs of Redis per job"), rows())


def _stages(document: Mapping[str, Any]) -> Iterator[str]:
    stages = document.get("stages")
    if not stages:
        return iter(())

    def rows() -> Iterator[tuple[str, str, str]]:
        for where, parts in stages.items():
            for part, micros in parts.items():
                yield where, part, f"{micros:.2f}"

    return _table(("process", "stage", "µs per job"), rows())


def _peers(document: Mapping[str, Any], only: Iterable[str] = ()) -> Iterator[str]:
    """Return the lines of the table that compares rq-core with the peers, or with the peers in ``only``. Queues that
    were not measured are left out."""
    if not document.get("peers"):
        return iter(())
    all_queues = {"rq-core": document, **document["peers"]}
    if only:
        all_queues = {name: figures for name, figures in all_queues.items() if name in only}

    def rows() -> Iterator[tuple[str, ...]]:
        for name, figures in sorted(all_queues.items(), key=lambda item: -_drain(item[1], "")):
            cells = []
            for figure in PEER_COLUMNS:
                found = (
                    _drain(figures, figure.removeprefix("drain"))
                    if figure.startswith("drain")
                    else figures.get(figure)
                )
                cells.append(targets.number(found) if found else "none")
            yield NOTES.get(name, name), *cells

    return _table(("", *PEER_COLUMNS.values()), rows())


def side_by_side(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the tables of rq-core and its peers, measured alternately. Each figure has its lowest and
    highest value."""
    run = document.get("far", document)
    if "far_ping_ms" not in run:
        return
    yield from (_facts(run), "")
    near_ping, far_ping, near_floor, far_floor = (
        targets.number(run[name])
        for name in ("near_ping_ms", "far_ping_ms", "near_floor_p50_ms", "far_floor_p50_ms")
    )
    yield (
        f"A bare PING took {near_ping} ms near Redis, and {far_ping} ms ({targets.spread(run, 'far_ping_ms')}) through "
        "the proxy, which adds a round trip of 2 ms. From the call of an LPUSH to the end of the BLPOP that it wakes, "
        f"{near_floor} and {far_floor} ms passed (p50)."
    )
    all_queues = {"rq-core": run}
    for name, found in run["peers"].items():
        all_queues[name] = {**found, "spread": run.get("peers_spread", {}).get(name, {})}
    for columns in BESIDE_COLUMNS:
        rows = {
            name: [
                f"{targets.number(found[figure])} ({targets.spread(found, figure)})"
                if figure in found
                else "none"
                for figure in columns
            ]
            for name, found in all_queues.items()
            if any(figure in found for figure in columns)
        }
        yield ""
        yield from _table(
            ("", *columns.values()),
            ((NOTES.get(name, name), *cells) for name, cells in rows.items()),
        )


def _far_short(document: Mapping[str, Any]) -> list[str]:
    """Return README's sentences about a Redis server that is far away, handlers that wait, and memory. Each figure of
    rq-core is followed by those of some peers."""
    run = document.get("far", document)
    if not run.get("peers") or "far_ping_ms" not in run:
        return []
    said = []
    for figure, words in README_SENTENCES.items():
        others = ", ".join(
            f"{name} {targets.number(run['peers'][name][figure])}"
            for name in README_FAR_PEERS
            if figure in run["peers"].get(name, {})
        )
        said.append(words.format(targets.number(run[figure]), others))
    latency, drain, waiting, idle, busy = said
    return [f"{latency}, {drain}. {waiting}. {idle}, {busy}."]


def _drain(figures: Mapping[str, Any], workers: str) -> float:
    """Return the jobs per second at which workers empty a queue, with the faster kind of handlers (async or threads).
    ``workers``: the part of the figure's name that says how many workers run."""
    return max(figures.get(f"drain_{kind}{workers}_per_s", 0.0) for kind in ("async", "threads"))
