"""The benchmark's targets: each has a figure and a bound. A target is a promise or a goal.

A promise is a target that the run met and whose costs are also limited by budgets in the tests (``held``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = Mapping[str, Any]
"""The document that :meth:`figures.Figures.document` creates."""

BEST_BULK = 106_000
"""The jobs per second that ardiq 1.2 enqueued in bulk. It was the highest figure of all peers in the last
comparison."""
BEST_DRAIN = 38_000
"""The jobs per second of one worker of blitzq 1.1, the fastest peer. BEST_DRAIN_TWO is the figure of two workers."""
BEST_DRAIN_TWO = 68_000


@dataclass(frozen=True)
class Target:
    """A figure and its bound. A bound that is a ratio is computed from other figures of the run."""

    what: str
    figure: str
    bound: Callable[[Document], float]
    why: str
    """The bound in words."""
    most: bool = False
    """True if the bound is the highest allowed figure. Otherwise it is the lowest."""
    unit: str = "/s"
    held: str = ""
    """The rows of tests/budgets/budgets.toml that limit the same cost by a count, as text: "section name, section
    name". Empty if no row does."""

    def found(self, document: Document) -> float | None:
        value: float | None = document.get(self.figure)
        return value

    def met(self, document: Document) -> bool | None:
        """Return whether the run met the bound; None if the run lacks a figure."""
        found = self.found(document)
        try:
            bound = self.bound(document)
        except KeyError:
            return None
        if found is None:
            return None
        return found <= bound if self.most else found >= bound


def _best_peer(document: Document, figure: str, known: float) -> float:
    found = [peer[figure] for peer in document.get("peers", {}).values() if figure in peer]
    return max(found, default=known)


def least(number: float) -> Callable[[Document], float]:
    return lambda _: number


def _rows() -> Iterator[Target]:
    yield Target(
        "enqueue in bulk, one producer", "enqueue_bulk_per_s",
        lambda d: max(200_000, 2 * _best_peer(d, "enqueue_bulk_per_s", BEST_BULK)),
        "200,000, and twice the best peer",
    )  # fmt: skip
    for part, held in (
        (1.6, "python_calls enqueue.one, system_calls enqueue.one, redis_calls enqueue.1"),
        (1.4, ""),
    ):
        yield Target(
            "enqueue one at a time", "enqueue_one_per_s",
            lambda d, part=part: d["evalsha_floor_per_s"] / part,  # type: ignore[misc]
            f"1/{part} of a bare EVALSHA", held=held,
        )  # fmt: skip
    yield Target(
        "drain, `async def`, one worker", "drain_async_per_s",
        lambda d: max(75_000, 2 * _best_peer(d, "drain_async_per_s", BEST_DRAIN)),
        "75,000, and twice the best peer",
    )  # fmt: skip
    yield Target(
        "drain, `async def`, two workers", "drain_async_2w_per_s",
        lambda d: 1.2 * _best_peer(d, "drain_async_2w_per_s", BEST_DRAIN_TWO),
        "1.2 times the best peer's two",
    )  # fmt: skip
    yield Target(
        "drain, `def` in threads, one worker", "drain_threads_per_s", least(25_000), "25,000",
        held="python_calls drain.threads, drain commands",
    )  # fmt: skip
    for figure, said, part in (
        ("one_cap", "a cap that is never reached", 0.85),
        ("binding", "caps that always bind", 0.6),
    ):
        yield Target(
            f"drain under {said}", f"drain_{figure}_per_s",
            lambda d, part=part: part * d["drain_async_per_s"], f"{part:.0%} of that without caps",
        )  # fmt: skip
    yield Target("latency, p50", "latency_p50_ms", least(0.25), "0.25 ms", most=True, unit=" ms")
    yield Target("latency, p99", "latency_p99_ms", least(0.8), "0.8 ms", most=True, unit=" ms")
    for part, held in ((1.6, "python_calls idle.async, system_calls idle.async"), (1.3, "")):
        yield Target(
            "latency, p50, beside the floor", "latency_p50_ms",
            lambda d, part=part: part * d["latency_floor_ms"],  # type: ignore[misc]
            f"{part} bare wakes with two round trips", most=True, unit=" ms", held=held,
        )  # fmt: skip
    for name, figure, bound in (
        ("a job's life in batches of 100", "redis_us_per_job", 10),
        ("one cap more", "redis_us_per_cap", 5),
        ("a job's life, alone", "redis_us_per_job_alone", 80),
        ("turns of one, saturated", "redis_us_turn_saturated", 35),
    ):
        yield Target(f"Redis, {name}", figure, least(bound), f"{bound} µs", most=True, unit=" µs")
    yield Target(
        "Redis, alone, beside three bare calls", "redis_us_alone_over_bare", least(4), "4 times",
        most=True, unit=" times", held="redis_calls enqueue.1, redis_calls claim.1, redis_calls complete.1",
    )  # fmt: skip
    yield Target(
        "Redis memory per waiting job", "redis_bytes_per_job", least(400), "400 bytes",
        most=True, unit=" B",
    )  # fmt: skip
    yield Target(
        "memory left when all is done", "redis_bytes_left_per_job", least(4), "none (1 %)",
        most=True, unit=" B",
    )  # fmt: skip
    yield Target(
        "cost at depth, worst over none", "depth_ratio", least(1.15), "1.15", most=True, unit=" times"
    )  # fmt: skip
    yield Target(
        "longest call at depth", "script_max_ms", least(10), "10 ms", most=True, unit=" ms"
    )  # fmt: skip
    yield Target("idle worker, commands", "idle_commands_per_s", least(2), "2/s", most=True)
    yield Target(
        "idle worker, processor", "idle_cpu_percent", least(1), "about none", most=True, unit=" %"
    )  # fmt: skip
    for database in ("sqlite", "postgres"):
        yield Target(
            f"end to end into {database}", f"end_to_end_{database}_per_s", least(25_000), "25,000"
        )
    for database, rows in (("sqlite", 40_000), ("postgres", 20_000)):
        yield Target(
            f"inbox in {database}, jobs handed over", f"inbox_{database}_per_s", least(rows), f"{rows:,}"
        )  # fmt: skip
        for name, said, bound in (
            ("hook", "the commit wakes the relay", 5),
            ("poll", "no hook", 600),
        ):
            yield Target(
                f"inbox in {database}, COMMIT to handler, p50, {said}",
                f"inbox_{database}_{name}_p50_ms", least(bound), f"{bound} ms", most=True, unit=" ms",
            )  # fmt: skip
    for kind, said in (("cpu", "1 ms of processor"), ("sleep", "5 ms asleep")):
        for workers in (2, 4):
            yield Target(
                f"{workers} workers, {said}", f"scaling_{kind}_{workers}w_percent", least(90),
                "90 % of the ideal", unit=" %",
            )  # fmt: skip
    yield Target("`rq-core --help`", "help_ms", least(150), "150 ms", most=True, unit=" ms")
    yield Target("import of rq_core", "import_ms", least(100), "100 ms", most=True, unit=" ms")


TARGETS = tuple(_rows())

FLOORS = {
    "bulk_floor_per_s": "enqueue's own bulk calls to a script that does nothing",
    "pipeline_floor_per_s": "LPUSH of each spec, pipelines of 100",
    "evalsha_floor_per_s": "enqueue's own call of one job to a script that does nothing",
    "drain_floor_per_s": "LMPOP of 100, JSON read, handler called",
    "latency_floor_ms": "a BLPOP woken by LPUSH, and two bare EVALSHAs",
    "redis_us_bare_call": "a call that does nothing, µs of Redis",
    "redis_turns_saturated_per_s": "beside it: turns of one a second, of 16 raw workers",
    "mirror_sqlite_floor_per_s": "the mirror's rows by executemany into SQLite, events",
    "mirror_sqlite_per_s": "beside it: the mirror into SQLite, events",
    "mirror_postgres_floor_per_s": "the mirror's rows by COPY into PostgreSQL, events",
    "mirror_postgres_per_s": "beside it: the mirror into PostgreSQL, events",
    **{
        f"inbox_{name}_{figure}": f"inbox in {said}: {what}"
        for name, said in (("sqlite", "SQLite"), ("postgres", "PostgreSQL"))
        for figure, what in (
            ("inserts_per_s", "plain INSERTs, each with its COMMIT"),
            ("evalshas_per_s", "calls of a script that does nothing, one after the other"),
            ("hook_p99_ms", "beside it: COMMIT to handler with the hook, p99, ms"),
            ("hook_commit_ms", "the COMMIT itself, p50, ms"),
            ("poll_p99_ms", "beside it: COMMIT to handler without a hook, p99, ms"),
        )
    },
}
"""The floors (the same work without a queue) of the same run, and further figures that have no target."""


INBOX = "inbox_"
"""The prefix of the names of figures about inboxes, which have their own table."""


def number(value: float) -> str:
    """Format a number for people: with thousands separators, or with three digits."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def spread(document: Document, figure: str) -> str:
    """Return the lowest and the highest value of a figure as text."""
    low, high = document["spread"].get(figure, (document[figure],) * 2)
    return f"{number(low)} to {number(high)}"


def promised_rows(document: Document) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for each promise: target, bound, median, lowest and highest value, and the budgets in the tests that
    limit its costs."""
    for target in TARGETS:
        if target.held and target.met(document):
            yield (*_row(document, target), f"`{target.held.replace(', ', '`, `')}`")


def aimed_rows(document: Document) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for each goal, except those of inboxes: target, bound, median, lowest and highest value, and whether
    the run met the bound."""
    for target in TARGETS:
        met = target.met(document)
        is_apart = target.figure.startswith(INBOX)
        if target.found(document) is not None and not (target.held and met) and not is_apart:
            yield (*_row(document, target), {True: "met", False: "not met", None: "?"}[met])


def _row(document: Document, target: Target) -> tuple[str, str, str, str]:
    return (
        target.what,
        f"{'≤' if target.most else '≥'} {target.why}",
        f"{number(document[target.figure])}{target.unit}",
        spread(document, target.figure),
    )


def floor_rows(document: Document) -> Iterator[tuple[str, str, str]]:
    for figure, what in FLOORS.items():
        if figure in document and not figure.startswith(INBOX):
            yield what, number(document[figure]), spread(document, figure)


def inbox_rows(document: Document) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield a row for each figure about inboxes: figure, bound (if any), best value, median, and lowest and highest
    value."""
    for target in TARGETS:
        if target.figure.startswith(INBOX) and target.found(document) is not None:
            what, bound, found, lowest_to_highest = _row(document, target)
            best = (min if target.most else max)(document["spread"][target.figure])
            yield what, bound, f"{number(best)}{target.unit}", found, lowest_to_highest
    for figure, what in FLOORS.items():
        if figure.startswith(INBOX) and figure in document:
            yield what, "", "", number(document[figure]), spread(document, figure)
