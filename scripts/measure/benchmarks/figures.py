"""Measured figures. Each is measured several times, and shown as the median, the lowest and the highest value."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


class Figures:
    """All measured values, by the name of the figure. ``peers`` has the figures of other queues.

    ``failures`` has the failed measurements, each with its reason.
    """

    def __init__(self) -> None:
        self.values: defaultdict[str, list[float]] = defaultdict(list)
        self.peers: defaultdict[str, Figures] = defaultdict(Figures)
        self.failures: dict[str, str] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.values[name].append(value)

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in self.values.items()}

    def spread(self) -> dict[str, list[float]]:
        """Return the lowest and the highest value of each figure."""
        return {
            name: [_short(min(values)), _short(max(values))] for name, values in self.values.items()
        }

    def document(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the figures as a dict for JSON: medians, lowest and highest values, the figures of peers, and
        ``facts`` about the machine."""
        return {
            **{name: _short(value) for name, value in self.medians().items()},
            "spread": self.spread(),
            "repeats": {name: len(values) for name, values in self.values.items()},
            "peers": {
                name: {n: _short(v) for n, v in peer.medians().items()}
                for name, peer in self.peers.items()
                if peer.values
            },
            "peers_spread": {
                name: peer.spread() for name, peer in self.peers.items() if peer.values
            },
            "failures": {
                **self.failures,
                **{
                    f"{name} {part}".strip(): why
                    for name, peer in self.peers.items()
                    for part, why in peer.failures.items()
                },
            },
            "facts": dict(facts),
        }


def _short(value: float) -> float:
    """Round a number to four digits, or to a whole number from 10,000 on: measurements are not more precise."""
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def facts(redis_version: str, sizes: str) -> dict[str, Any]:
    """Return facts about the machine and the versions, for readers who compare the figures later."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],  # noqa: S607 - whichever git there is
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "sizes": sizes,
        "python": platform.python_version(),
        "redis": redis_version,
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (li.split(":")[1].strip() for li in lines if li.startswith("model name")), "unknown"
    )
