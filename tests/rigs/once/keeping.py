"""Keeps each result for a second, at full speed. Results must leave Redis as fast as they come, and no call may be
slow."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import DIGEST, VALUE_MAX, pack_result
from rq_core.protocol.calls import claims
from rq_core.worker.settlement import Settlement, calls_of
from tests.rigs.judge import memory
from tests.rigs.once.tasks import QUEUE

CHUNK: Final = 250
"""The number of jobs in a call, equal to the number in one claim."""
KEEP_MS: Final = 1_000
CALL_MS: Final = 10.0
"""The time (ms) of Redis' processor core that no call may exceed, so that other clients do not wait for the call."""


@dataclass
class Keeping:
    """The figures of a run in which Redis keeps each result for a second."""

    kept: int = 0
    rate: float = 0.0
    """The number of results per second."""
    memory: list[int] = field(default_factory=list)
    """The number of bytes that Redis used at the end of each second."""
    entries: list[int] = field(default_factory=list)
    """The number of results that Redis kept at the end of each second."""
    left: int = 0
    """The number of entries that the keys ``results`` and ``returned`` still had after all results had expired, and
    claims had removed expired results."""
    calls_ms: list[float] = field(default_factory=list)
    """The time (ms) of Redis' processor core that the calls to end jobs took, longest first. Time in which other
    programs have the core does not count."""

    @property
    def growth(self) -> float:
        return memory.growth(self.memory)

    def line(self) -> str:
        """Return the figures as one line."""
        return (
            f"{self.kept:,} results kept for {KEEP_MS} ms, {self.rate:,.0f} a second: at most {max(self.entries):,} at"
            f" once; {memory.said(self.memory)};"
            f" {self.left:,} left; calls took Redis {self.calls_ms[len(self.calls_ms) // 2]:.1f} ms, the dearest"
            f" {', '.join(f'{ms:.1f}' for ms in self.calls_ms[:3])} ms"
        )


def keep(url: str, seconds: float, size: int, *, log: str = DIGEST, chunk: int = CHUNK) -> Keeping:
    """Let jobs return values of ``size`` bytes, as fast as one client can enqueue them. Each call has ``chunk``
    jobs."""
    found, ids, made = Keeping(), JobIds(), profile("hold")
    value = pack_result('"' + "x" * min(size - 2, VALUE_MAX - 2) + '"', log)
    ties = ties_of(keep_ms=KEEP_MS, audit_result=log)
    with Client(url) as client:
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            if passed >= len(found.memory) + 1:
                _look(client, found)
            jobs = [NewJob(ids(), QUEUE, made, "{}", ties=ties) for _ in range(chunk)]
            client.run(client.calls.enqueue.many(jobs))
            held = client.run(claims.claim(QUEUE, "w-1", chunk)).jobs
            ended = [Settlement(claim, "complete", value=value) for claim in held]
            for call, _ in calls_of("w-1", ended):
                before = _cpu_ms(client)
                assert not client.run(call)
                found.calls_ms.append(_cpu_ms(client) - before)
            found.kept += len(held)
        found.rate = found.kept / (time.monotonic() - began)
        _look(client, found)
        found.calls_ms.sort(reverse=True)
        time.sleep(KEEP_MS / 1000)
        for _ in range(2 + max(found.entries) // claims.SWEEP_MAX):
            client.run(claims.claim(QUEUE, "w-1", 0))
        found.left = _entries(client, "results") + _entries(client, "returned")
    return found


def _cpu_ms(client: Client) -> float:
    """Return the processor time (ms) that Redis' main thread has used."""
    spent = memory.info(client, "cpu")
    return 1000 * sum(float(spent[f"used_cpu_{kind}_main_thread"]) for kind in ("user", "sys"))


def _look(client: Client, found: Keeping) -> None:
    found.memory.append(memory.used_memory(client))
    found.entries.append(_entries(client, "results"))


def _entries(client: Client, name: str) -> int:
    return int(memory.ask(client, "HLEN", queue_keys(QUEUE)(name)))
