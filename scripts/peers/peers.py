"""Measures other queues (peers) with the same work, each in its own environment and with a time limit."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import throughput
from figures import Figures
from sizes import Sizes
from stage import HERE, Contender, Failed, Stage

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rq-core-bench"
INSTALL_S = 300
PART_S = 40.0
PEER_S = 150.0
"""The longest time (s) of all measurements of a peer in one repeat. Measurements that remain after it are left out."""
SLOW_PER_S = 2_000
"""The speed (jobs per second) below which a peer is measured with a tenth of the jobs."""


@dataclass(frozen=True)
class Peer:
    """A library with its pinned version, and the settings for its run."""

    name: str
    pins: tuple[str, ...]
    kind: str = "async"
    """The kind of its handlers (async or threads), which is a part of the names of its drain figures."""
    python: str = "3.11"
    """The oldest Python version on which the library runs."""
    bulk: bool = False
    two_workers: bool = True

    @property
    def script(self) -> Path:
        return Path(__file__).parent / f"{self.name}_peer.py"


PEERS = (
    Peer("blitzq", ("blitzq==1.1.0",), python="3.12", bulk=True),
    Peer("ardiq", ("ardiq==1.2.0",), python="3.12", bulk=True),
    Peer("dramatiq", ("dramatiq[redis]==2.2.1",), kind="threads"),
    Peer("huey", ("huey==3.5.4", "redis==8.1.0"), kind="threads"),
    Peer("taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4")),
    Peer("arq", ("arq==0.28.0",)),
    Peer("saq", ("saq[redis]==0.26.4", "typing_extensions==4.16.0")),
    Peer("streaq", ("streaq==7.2.0",), bulk=True),
    Peer("rq", ("rq==2.12.0",), kind="threads", bulk=True),
)
WITH_ALL = ("hiredis==3.5.0", "uvloop==0.23.0")


class Attempts:
    """Makes the measurements of a contender (benchmarked library) until its ``seconds`` are over. A failed measurement
    is not repeated."""

    def __init__(self, figures: Figures, seconds: float) -> None:
        self._figures = figures
        self._until = time.monotonic() + seconds
        self._seconds = seconds

    def __call__(self, part: str, work: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Make a measurement, add its figures, and return them. Return no figures if it fails.

        ``part``: its name. ``work``: the function that measures.
        """
        failures = self._figures.failures
        if part in failures:
            return {}
        if time.monotonic() > self._until:
            failures[part] = f"its {self._seconds:.0f} s were over"
            return {}
        try:
            found = work()
        except Failed as failure:
            failures[part] = str(failure)
            return {}
        self._figures.add(found)
        return found


def installed(figures: Figures, say: Callable[[str], None]) -> dict[str, Contender]:
    """Install every peer. Return those that could be installed, by name."""
    ready: dict[str, Contender] = {}
    for peer in PEERS:
        say(f"installing {peer.name}")
        try:
            python = environment(peer.name, (*peer.pins, *WITH_ALL), peer.python)
        except Failed as failure:
            figures.peers[peer.name].failures["install"] = str(failure)
            continue
        ready[peer.name] = Contender(
            peer.name,
            peer.script,
            str(python),
            (peer.kind,),
            environment={"PYTHONPATH": str(HERE)},
            part_s=PART_S,
        )
    return ready


def measure(
    stage: Stage,
    sizes: Sizes,
    figures: Figures,
    ready: Mapping[str, Contender],
    say: Callable[[str], None],
) -> None:
    """Measure each installed peer once per repeat, for at most three repeats."""
    for repeat in range(min(sizes.repeats, 3)):
        for peer in PEERS:
            if peer.name in ready:
                say(f"{repeat + 1} {peer.name}")
                _measure(stage, peer, ready[peer.name], sizes, figures.peers[peer.name])


def _measure(
    stage: Stage, peer: Peer, contender: Contender, sizes: Sizes, figures: Figures
) -> None:
    jobs = sizes.peer
    attempt = Attempts(figures, PEER_S)

    def one() -> dict[str, float]:
        return {"enqueue_one_per_s": throughput.enqueue_one(stage, contender, jobs // 4, peer.kind)}

    def bulk() -> dict[str, float]:
        rate = throughput.enqueue_bulk(stage, contender, 4 * jobs, peer.kind)
        return {"enqueue_bulk_per_s": rate}

    def drain(workers: int, of: int) -> dict[str, float]:
        rate, held = throughput.drain(stage, contender, of, peer.kind, workers=workers)
        if workers == 2:
            return {f"drain_{peer.kind}_2w_per_s": rate}
        return {f"drain_{peer.kind}_per_s": rate, "redis_bytes_per_job": held}

    def latency() -> dict[str, float]:
        took = throughput.latency_ms(stage, contender, sizes.paced, peer.kind, None)
        return {
            "latency_p50_ms": throughput.percentile(took, 0.5),
            "latency_p99_ms": throughput.percentile(took, 0.99),
        }

    attempt("enqueue one", one)
    if peer.bulk:
        attempt("enqueue bulk", bulk)
    trial = attempt("drain", lambda: drain(1, max(jobs // 10, 100)))
    if trial:
        fast = trial[f"drain_{peer.kind}_per_s"] > SLOW_PER_S
        if fast:
            # A tenth has shown that it is fast: that was too short to count.
            figures.values[f"drain_{peer.kind}_per_s"].pop()
            figures.values["redis_bytes_per_job"].pop()
            attempt("drain", lambda: drain(1, jobs))
        attempt("drain with two", lambda: drain(2, jobs if fast else max(jobs // 10, 100)))
    attempt("latency", latency)


def environment(name: str, pins: tuple[str, ...], python: str = "3.11") -> Path:
    """Return the Python of a virtual environment with these packages, created at the first use. Raises Failed."""
    interpreter = _interpreter(python)
    digest = hashlib.sha256("\0".join((str(interpreter), *pins)).encode()).hexdigest()[:12]
    place = CACHE / f"{name}-{digest}"
    made = place / "bin" / "python"
    stamp = place / ".installed"
    if stamp.exists():
        return made
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    for command in (
        [str(interpreter), "-m", "venv", "--without-pip", str(place)],
        [sys.executable, "-m", "pip", "--python", str(made), "install", "--quiet", *pins],
    ):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"it did not install in {INSTALL_S} s") from None
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Failed(f"it did not install: {(said or ['no reason given'])[-1][:200]}")
    stamp.touch()
    return made


def _interpreter(oldest: str) -> Path:
    """Return the path of a Python that is at least version ``oldest``: this one, or another installed one. Raises
    Failed.
    """
    wanted = tuple(map(int, oldest.split(".")))
    if sys.version_info[:2] >= wanted:
        return Path(sys.executable)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in (wanted[1], wanted[1] + 1):
        name = f"{wanted[0]}.{minor}"
        for found in [shutil.which(f"python{name}"), *sorted(pyenv.glob(f"{name}.*/bin/python"))]:
            asks = "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, sys.argv[1].split('.'))))"
            if found is None:
                continue
            if not subprocess.run(
                [str(found), "-c", asks, name], capture_output=True, check=False
            ).returncode:
                return Path(found)
    raise Failed(f"it needs Python {oldest}, which is not found here")
