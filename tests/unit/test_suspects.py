"""Suspects, which are jobs that have lost a worker. A process runs one of them at a time, and the others wait."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from rq_core.model.job import Claim
from rq_core.worker.held_jobs import PAUSE_S, PAUSE_S_MAX, REMEMBERED_MAX, Suspects


def claim(name: str, losses: int = 1) -> Claim:
    return Claim("q", name, "1-1", 2, 0, losses, "{}")


def beside(*claims: Claim) -> Any:
    return [SimpleNamespace(claim=each) for each in claims]


def test_a_job_that_never_lost_a_worker_does_not_wait() -> None:
    assert Suspects().pause(claim("fresh", 0), beside(claim("a"))) is None


def test_a_job_that_has_lost_a_worker_may_run_beside_jobs_that_never_lost_one() -> None:
    assert Suspects().pause(claim("a"), beside(claim("fresh", 0))) is None


def test_a_second_suspect_in_a_process_waits_longer_after_each_claim_up_to_a_limit() -> None:
    suspects = Suspects(random.Random(1))
    pauses = [suspects.pause(claim("b"), beside(claim("a"))) or 0 for _ in range(12)]

    for times, pause in enumerate(pauses):
        wanted = min(PAUSE_S * 2**times, PAUSE_S_MAX)
        assert 0.75 * wanted <= pause <= 1.25 * wanted


def test_a_suspect_that_has_run_waits_only_briefly_when_it_is_claimed_again() -> None:
    suspects = Suspects()
    for _ in range(5):
        suspects.pause(claim("b"), beside(claim("a")))
    suspects.pause(claim("b"), beside())

    assert (suspects.pause(claim("b"), beside(claim("a"))) or 0) <= 1.25 * PAUSE_S


def test_a_worker_remembers_a_limited_number_of_suspects() -> None:
    suspects = Suspects()
    for n in range(REMEMBERED_MAX + 5):
        suspects.pause(claim(f"b{n}"), beside(claim("a")))

    assert len(suspects._put_off) == REMEMBERED_MAX
