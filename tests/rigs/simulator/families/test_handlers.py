"""A simulated parent ends as it would on a worker, also while its lease ends or the log has no room for its entries."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from rq_core.errors import AuditBacklogFull
from rq_core.model.durable.boxes import StepEntry
from rq_core.model.job import Claim
from rq_core.protocol.reads.box_reads import Box
from rq_core.worker.execution.parked_boxes import ParkedBoxes
from tests.rigs.simulator.durable import Seat
from tests.rigs.simulator.families.handlers import FamilyHandler
from tests.rigs.simulator.families.shards import PARENTS
from tests.rigs.simulator.strand import Sleep


class FullLog:
    """A client of a queue whose log has no room. The worker's lease ends while Redis refuses a save."""

    def __init__(self, worker: LeaseWorker) -> None:
        self._worker = worker

    def run(self, _plan: Any) -> Any:
        self._worker.lease_holds = False
        raise AuditBacklogFull(queue=PARENTS, backlog=2, bound=1)


class LeaseWorker:
    """The parts of a simulated worker that a parent's handler uses."""

    name = "worker-0.1"
    now_ms = 0
    healing = False

    def __init__(self) -> None:
        self.lease_holds = True
        self.parked = ParkedBoxes()
        world = SimpleNamespace(seconds=lambda: 0.0)
        self.simulation = SimpleNamespace(joined=[], refused=Counter(), world=world, lease_ms=6_000)
        self.keeper = SimpleNamespace(interval=1.0, extended_at=self._extended_at)

    def _extended_at(self, _queue: str) -> float:
        return 0.0 if self.lease_holds else -60.0

    def wake(self, _queue: str) -> None:
        """Do nothing: no strand rests."""

    @contextmanager
    def seat(self, _strand: Any) -> Iterator[Seat]:
        client: Any = FullLog(self)
        yield Seat(client=client)


def parent_of(worker: Any) -> FamilyHandler:
    """Return the handler of a parent with one child. No call of the handler is planned to fail."""
    spec = {"task": "gather", "args": {"moves": ["map 1 0.5"]}}
    claim = Claim(PARENTS, "p", "1-1", 1, 0, 0, json.dumps(spec))
    return FamilyHandler(worker, claim, "complete", None)


def test_a_simulated_parent_whose_save_is_refused_until_its_lease_ends_is_retried() -> None:
    worker = LeaseWorker()
    parent = parent_of(worker)

    parent.run(strand=SimpleNamespace())  # type: ignore[arg-type]

    assert (parent.outcome, worker.simulation.joined) == ("retry", [])


def test_a_simulated_parent_keeps_its_claim_if_a_full_log_refuses_to_save_its_lost_steps_again() -> (
    None
):
    """The next turn of the worker settles the claim again."""
    worker = LeaseWorker()
    parent = parent_of(worker)
    parent.run(strand=SimpleNamespace())  # type: ignore[arg-type]
    begun = StepEntry("map:parts", is_saved=False, at_ms=0, fence="1-1")
    parent.context.steps._know(Box("0000000000000001", (begun,)))

    parent.save_again(FullLog(worker))  # type: ignore[arg-type]

    assert worker.simulation.refused["behind"] == 0


def test_at_the_end_of_a_simulation_a_parent_whose_lease_may_have_expired_waits_for_the_heartbeat() -> (
    None
):
    worker = LeaseWorker()
    worker.healing, worker.lease_holds = True, False
    stops: list[Any] = []

    def wait(point: Any) -> None:
        stops.append(point)
        worker.lease_holds = True

    parent_of(worker).run(strand=SimpleNamespace(wait=wait))  # type: ignore[arg-type]

    assert stops == [Sleep(2_000)]
