"""A worker of both queues makes its next turn of a queue when it has something to settle, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from rq_core.model.job import Claim
from tests.rigs.simulator import durable
from tests.rigs.simulator.actors import Run
from tests.rigs.simulator.families.actors import FamilyWorker
from tests.rigs.simulator.families.handlers import FamilyHandler
from tests.rigs.simulator.families.shards import PARENTS, PARTS
from tests.rigs.simulator.strand import Sleep, Strand

NOW_MS, LOOKS_MS = 1_000, 1_600


class Alone(FamilyWorker):
    """A worker without a simulation. Its time does not pass."""

    def __init__(self) -> None:
        self.role, self.boots = "worker-0", 1
        self.held: dict[str, Run] = {}
        self.resting: dict[str, Strand] = {}

    @property
    def now_ms(self) -> int:
        return NOW_MS

    def hold(self, ends_ms: int, *, queue: str = PARENTS, outcome: str | None = None) -> None:
        """Let the worker run a handler. ``outcome`` is how the handler of a parent ended, or empty if it still
        runs; None: the job is no parent."""
        handler: Any = None if outcome is None else SimpleNamespace(outcome=outcome)
        claim = Claim(queue, f"job-{len(self.held)}", "1-1", 1, 0, 0, "{}")
        self.held[claim.id] = Run(claim, ends_ms, "complete", handler=handler)


@contextmanager
def resting(worker: Alone) -> Iterator[Strand]:
    """Let the worker rest after a turn."""
    strand = Strand("turns", lambda strand: worker.rest(strand, PARENTS, LOOKS_MS))
    strand.resume()
    try:
        yield strand
    finally:
        strand.crash()


@pytest.mark.parametrize("ends_ms", [900, 1_200])
def test_a_simulated_worker_waits_its_full_interval_while_the_handler_of_a_parent_is_running(
    ends_ms: int,
) -> None:
    """Checks that the time at which any other handler would end is without meaning, also if it has passed."""
    worker = Alone()
    worker.hold(ends_ms, outcome="")

    with resting(worker) as strand:
        assert strand.point == Sleep(LOOKS_MS)


@pytest.mark.parametrize(("queue", "point"), [(PARENTS, Sleep(NOW_MS)), (PARTS, Sleep(LOOKS_MS))])
def test_the_end_of_the_handler_of_a_parent_ends_only_the_wait_of_a_worker_of_its_queue(
    queue: str, point: Sleep
) -> None:
    worker = Alone()
    worker.hold(900, queue=queue, outcome="")
    (run,) = worker.held.values()

    with resting(worker) as strand, mock.patch.object(durable.Handler, "run"):
        FamilyHandler(worker, run.claim, "complete", None).run(strand)
        assert strand.point == point


def test_a_simulated_worker_that_was_woken_waits_again_after_its_next_exchange_with_redis() -> None:
    worker = Alone()

    with resting(worker) as strand:
        worker.wake(PARENTS)
        strand.resume()
        assert strand.done
    with resting(worker) as strand:
        assert strand.point == Sleep(LOOKS_MS)


def test_a_simulated_worker_begins_an_exchange_with_redis_when_a_handler_of_its_queue_ends() -> (
    None
):
    worker = Alone()
    worker.hold(1_200)
    worker.hold(1_100, queue=PARTS)

    with resting(worker) as strand:
        assert strand.point == Sleep(1_200)


def test_a_parent_whose_handler_ended_during_an_exchange_with_redis_is_settled_by_the_next_exchange() -> (
    None
):
    worker = Alone()
    worker.hold(900, outcome="park")

    with resting(worker) as strand:
        assert strand.point == Sleep(NOW_MS + 1)
