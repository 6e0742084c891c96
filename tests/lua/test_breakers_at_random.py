"""Random lives of jobs under two breakers, beside a naive model that counts each failure in a list."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from rq_core.model.job import Claim
from tests.kit.seed import Seed

FAILURES, WINDOW, COOLDOWN = 3, 2_000, 1_500
FAMILIES = ("ask.host@2s:failures", "ask.zone@2s:failures")
SCOPES = tuple(f"{family}={key}" for family in FAMILIES for key in ("x", "y"))
STEPS = 400


@dataclass
class Naive:
    """One breaker, as the table of docs/decisions/breakers.md has it."""

    failed: list[int] = field(default_factory=list)
    until: int | None = None
    probe: str | None = None

    def admits(self, now: int) -> bool:
        return self.until is None or (self.until <= now and self.probe is None)

    def begin(self, job: str) -> None:
        if self.until is not None:
            self.probe = job

    def end(self, job: str, how: str, now: int) -> None:
        if self.until is None:
            if how == "failed":
                self.failed = [t for t in self.failed if t > now - WINDOW] + [now]
                if len(self.failed) >= FAILURES:
                    self.until, self.failed = now + COOLDOWN, []
        elif self.probe == job:
            self.probe = None
            if how == "failed":
                self.until = max(self.until, now + COOLDOWN)
            elif how == "succeeded" and self.until <= now:
                self.until = None


class Life:
    """A queue with two workers, and the naive breakers."""

    def __init__(self, seed: Seed, number: int) -> None:
        self.seed = seed
        self.rng = random.Random(number)
        self.naive = {scope: Naive() for scope in SCOPES}
        self.scopes: dict[str, list[str]] = {}
        self.running: dict[str, Claim] = {}
        self.cancelling: set[str] = set()
        for family in FAMILIES:
            seed.cap(family, f"{FAILURES}/{WINDOW}ms/{COOLDOWN}")

    def enqueue(self) -> None:
        job = f"j-{len(self.scopes)}"
        self.scopes[job] = [
            f"{family}={self.rng.choice('xy')}" for family in FAMILIES if self.rng.random() < 0.7
        ]
        self.seed.enqueue(job, scopes=self.scopes[job], attempts=1_000)

    def claim(self) -> int:
        """Claim jobs, and return how many came."""
        claims = self.seed.claim(self.rng.choice((1, 1, 3))).jobs
        for claim in claims:
            for scope in self.scopes[claim.id]:
                assert self.naive[scope].admits(self.seed.now), (claim.id, scope)
                self.naive[scope].begin(claim.id)
            self.running[claim.id] = claim
        return len(claims)

    def end(self) -> None:
        if not self.running:
            return
        job = self.rng.choice(sorted(self.running))
        claim = self.running.pop(job)
        how = self.rng.choice(("succeeded", "failed", "failed", "given back", "excepted"))
        asked = job in self.cancelling
        self.cancelling.discard(job)
        delay = self.rng.choice((0, 0, 300))
        if how == "succeeded":
            self.seed.complete(claim)
        elif how == "given back":
            self.seed.rollback(claim, delay_ms=delay)
        else:
            error = json.dumps({"excepted": FAMILIES[0]} if how == "excepted" else {})
            self.seed.fail(claim, delay_ms=delay, error=error)
        for scope in self.scopes[job]:
            counts = how == "failed" or (how == "excepted" and not scope.startswith(FAMILIES[0]))
            said = "failed" if counts else how
            neither = asked and how != "succeeded"
            self.naive[scope].end(job, "neither" if neither else said, self.seed.now)

    def cancel(self) -> None:
        if self.running:
            job = self.rng.choice(sorted(self.running))
            self.seed.cancel(job)
            self.cancelling.add(job)

    def assert_none_waits_in_vain(self) -> None:
        """Claim until no job comes. Assert that a breaker refuses each ready job that is left."""
        while self.claim():
            pass
        for job, line in self.seed.snapshot()["state"].items():
            if line.startswith("ready "):
                admits = [self.naive[scope].admits(self.seed.now) for scope in self.scopes[job]]
                assert not all(admits), (job, self.seed.snapshot()["rates"])


@pytest.mark.parametrize("number", range(3))
def test_claims_under_breakers_agree_with_a_naive_model(seed: Seed, number: int) -> None:
    life = Life(seed, number)
    for step in range(STEPS):
        steps: tuple[Callable[[], object], ...] = (
            life.enqueue, life.claim, life.claim, life.end, life.end, life.cancel,
        )  # fmt: skip
        life.rng.choice(steps)()
        if life.rng.random() < 0.3:
            seed.live(life.rng.choice((1, 50, 700)))
            seed.extend(list(life.running.values()))
        if step % 20 == 0:
            life.assert_none_waits_in_vain()
            seed.assert_consistent()
    assert any(naive.until for naive in life.naive.values())
