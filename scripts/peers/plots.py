"""Pictures of a run's figures. This script runs in its own environment with matplotlib, and imports nothing else.

python plots.py FIGURES.json DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

PLOTS = {
    "drain": ("jobs a worker runs per second", ("drain_async_per_s", "drain_threads_per_s")),
    "enqueue": ("jobs a producer enqueues per second", ("enqueue_bulk_per_s", "enqueue_one_per_s")),
    "latency": (
        "ms from enqueue to the handler, idle worker",
        ("latency_p50_ms", "latency_p99_ms"),
    ),
}
OURS, OTHERS = ("#b3261e", "#e0a19d"), ("#4a6785", "#b7c6d6")


def draw(document: dict[str, Any], name: str, where: Path) -> None:
    title, figures = PLOTS[name]
    all_queues = {"rq-core": document, **document["peers"]}
    rows = [
        (library, figure, found[figure])
        for library, found in all_queues.items()
        for figure in figures
        if figure in found
    ]
    rows.sort(key=lambda row: row[2], reverse="ms" in figures[0])
    labels = [f"{library} ({_short(figure)})" for library, figure, _ in rows]
    colours = [
        (OURS if library == "rq-core" else OTHERS)[figures.index(f)] for library, f, _ in rows
    ]
    figure, axes = plt.subplots(figsize=(8, 0.3 * len(rows) + 1.1))
    bars = axes.barh(labels, [value for _, _, value in rows], color=colours)
    axes.bar_label(bars, [f"{v:,.0f}" if v >= 100 else f"{v:.2g}" for _, _, v in rows], padding=3)
    if name == "latency":
        axes.set_xscale("log")
    axes.set_title(f"{title} — {document['facts']['redis']}, {document['facts']['cores']} cores")
    axes.margins(x=0.12)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    for ending in ("svg", "png"):
        figure.savefig(
            where / f"{name}.{ending}",
            dpi=130,
            metadata={"Date": None} if ending == "svg" else None,
        )
    plt.close(figure)


def _short(figure: str) -> str:
    words = {
        "drain_async_per_s": "async def", "drain_threads_per_s": "threads", "enqueue_bulk_per_s": "bulk",
        "enqueue_one_per_s": "one at a time", "latency_p50_ms": "p50", "latency_p99_ms": "p99",
    }  # fmt: skip
    return words[figure]


if __name__ == "__main__":
    found = json.loads(Path(sys.argv[1]).read_text())
    place = Path(sys.argv[2])
    place.mkdir(parents=True, exist_ok=True)
    # The same file again from the same figures.
    mpl.rcParams["svg.hashsalt"] = "rq-core"
    for each in PLOTS:
        draw(found, each, place)
