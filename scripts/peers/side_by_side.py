"""Measures rq-core and its peers alternately: latency near and far from the server, handlers that wait, and memory.

Each repeat reverses the order, so that a slow hour of the machine affects all queues alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import throughput
from delaying import ping_ms
from figures import Figures
from peers import SLOW_PER_S, Attempts
from sizes import Sizes
from stage import BARE, OURS, Contender, Stage

FAR_MS = 2.0
"""The round trip (ms) that the proxy adds between the server and a far producer or worker."""
PLACES = 1_000
"""The number of jobs that the worker runs at once in the measurement of handlers that wait."""
SECONDS = 240.0
"""The longest time (s) of all measurements of a contender (benchmarked library) in one repeat."""


def measure(
    stage: Stage,
    sizes: Sizes,
    figures: Figures,
    peers: Mapping[str, Contender],
    say: Callable[[str], None],
) -> None:
    """Measure each contender once in each repeat, for at most three repeats."""
    contenders = {"": OURS, **peers}
    for repeat in range(min(sizes.repeats, 3)):
        figures.add(_floors(stage, sizes))
        names = list(contenders)
        for name in reversed(names) if repeat % 2 else names:
            say(f"{repeat + 1} side by side: {name or OURS.name}")
            found = figures.peers[name] if name else figures
            _measure(stage, contenders[name], sizes, found)


def _floors(stage: Stage, sizes: Sizes) -> dict[str, float]:
    """Return the floors for comparison: the round trips of a bare PING, and the latencies of a BLPOP that an LPUSH
    wakes."""
    found = {
        "near_ping_ms": ping_ms(stage.url),
        **_latency(stage, BARE, "wake", sizes, "near_floor"),
    }
    with stage.far(FAR_MS):
        found["far_ping_ms"] = ping_ms(stage.url)
        found |= _latency(stage, BARE, "wake", sizes, "far_floor")
    return found


def _latency(
    stage: Stage, contender: Contender, kind: str, sizes: Sizes, name: str
) -> dict[str, float]:
    places = 10 if contender is OURS else None
    took, call_ms = throughput.paced(stage, contender, sizes.beside, kind, places)
    return {
        f"{name}_p50_ms": throughput.percentile(took, 0.5),
        f"{name}_p99_ms": throughput.percentile(took, 0.99),
        f"{name}_call_ms": call_ms,
    }


def _measure(stage: Stage, contender: Contender, sizes: Sizes, figures: Figures) -> None:
    kind = contender.kinds[0]
    attempt = Attempts(figures, SECONDS)

    def far(work: Callable[[], dict[str, float]]) -> dict[str, float]:
        with stage.far(FAR_MS):
            return work()

    def drain(jobs: int) -> dict[str, float]:
        return {"far_drain_per_s": throughput.drain(stage, contender, jobs, kind)[0]}

    attempt("near latency", lambda: _latency(stage, contender, kind, sizes, "near"))
    attempt("far latency", lambda: far(lambda: _latency(stage, contender, kind, sizes, "far")))
    few = max(sizes.peer // 10, 100)
    trial = attempt("far drain", lambda: far(lambda: drain(few)))
    fast = trial.get("far_drain_per_s", 0.0) > SLOW_PER_S
    if fast:
        figures.values["far_drain_per_s"].pop()
        attempt("far drain", lambda: far(lambda: drain(sizes.peer)))
    jobs = sizes.peer if fast else few
    attempt("waiting handlers", lambda: throughput.waiting(stage, contender, jobs, kind, PLACES))
    attempt("idle memory", lambda: throughput.idle_mb(stage, contender, kind, sizes.settle_s))
