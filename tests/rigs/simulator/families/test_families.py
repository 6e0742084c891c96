"""Every promise about families holds for some seeds, a seed repeats exactly, and planted bugs are found.

``scripts/prove/simulate --families --seeds 1..2000`` runs many seeds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest import mock

import pytest

from rq_core.app.durable.children import JobSteps
from rq_core.errors import AuditBacklogFull
from rq_core.model.durable.children import child_id
from rq_core.model.outcome import Gone
from rq_core.protocol.calls.families import Families
from rq_core.worker.child_ends import ChildEnds
from tests.rigs.simulator.families.handlers import FamilyHandler
from tests.rigs.simulator.families.shards import TwoStages, both_staged
from tests.rigs.simulator.families.simulation import PROFILES, FamilySimulation
from tests.rigs.simulator.simulation import Failed

SHORT: Final = (4, 7)
"""Seeds with few steps: failovers without a loss, and failovers of both servers to older data."""
SEARCHED: Final = 60
"""The number of seeds in which a planted bug is searched for, if the seed that once found the bug no longer finds
it."""

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def stages() -> Iterator[TwoStages]:
    with both_staged() as made:
        yield made


@pytest.mark.parametrize("seed", SHORT)
def test_every_promise_about_parents_and_children_holds_for_a_short_seed(
    stages: TwoStages, seed: int
) -> None:
    counts = FamilySimulation(stages, seed).run().counts

    assert counts["joined items"] > 0


@pytest.mark.slow
def test_every_promise_about_parents_and_children_holds_for_one_seed_of_each_profile(
    stages: TwoStages,
) -> None:
    for seed in range(len(PROFILES)):
        FamilySimulation(stages, seed).run()


@pytest.mark.slow
def test_two_runs_of_a_seed_about_parents_and_children_are_equal_in_every_byte(
    stages: TwoStages,
) -> None:
    """Other seeds run in between."""
    first = [FamilySimulation(stages, seed).run() for seed in (*SHORT, 8)]
    again = [FamilySimulation(stages, seed).run() for seed in (*SHORT, 8)]

    assert first == again


# Planted bugs.

_enqueue, _look, _save_part = JobSteps._enqueue, JobSteps._look, JobSteps._save_part
_make_calls = FamilyHandler._make_calls


async def _leave_out(steps: JobSteps, launch: str, jobs: Sequence[Any]) -> bool:
    return await _enqueue(steps, launch, jobs[:-1] if len(jobs) > 1 else jobs)


def _of_claim(steps: JobSteps, launch: str, index: int) -> str:
    return child_id(f"{steps._life}{steps._context.fence}", launch, index)


async def _swap(steps: JobSteps, part: Sequence[tuple[str, str]]) -> None:
    if len(part) > 1:
        (one, first), (other, second), *rest = part
        part = [(one, second), (other, first), *rest]
    await _save_part(steps, part)


async def _end_one(steps: JobSteps, places: Sequence[tuple[str, str]]) -> dict[str, Any]:
    found = await _look(steps, places)
    for _, job_id in places:
        if job_id not in found:
            return {**found, job_id: Gone(job_id)}
    return found


def _cancel_alone(calls: Families, queue: str, ids: Sequence[str], **about: Any) -> Any:
    return (yield from calls._admin.cancel(queue, ids, **about))


async def _cancel_nobody(_ends: ChildEnds, _orphans: Mapping[str, Sequence[str]]) -> None:
    pass


def _never(_steps: JobSteps, _launch: str) -> int:
    return 10**9


def _return_after_refusal(handler: FamilyHandler, job: Any) -> None:
    with contextlib.suppress(AuditBacklogFull):
        _make_calls(handler, job)


PLANTED: Final[Mapping[str, tuple[Any, str, Any, int, str]]] = {
    "the last child is not enqueued": (JobSteps, "_enqueue", _leave_out, 0, "has enqueued"),
    "each claim has other children": (JobSteps, "_child_id", _of_claim, 0, "no child of any"),
    "two results are swapped": (JobSteps, "_save_part", _swap, 0, "got the result of child"),
    "a living child counts as gone": (JobSteps, "_look", _end_one, 0, "server lost nothing"),
    "a cancel leaves the children": (Families, "cancel", _cancel_alone, 9, "was cancelled with"),
    "a parent never looks by itself": (JobSteps, "_pause_ms", _never, 1, "not worked off"),
    "a run whose save is refused succeeds": (
        FamilyHandler, "_make_calls", _return_after_refusal, 776, "was completed after maps",
    ),
    "the worker of a cancelled parent cancels nobody": (
        ChildEnds, "_cancel", _cancel_nobody, 9, "was cancelled with",
    ),
}  # fmt: skip
"""Bugs, each with the code that it replaces, the first seed that found it, and what the simulator says."""


def _plant(name: str) -> AbstractContextManager[Any]:
    owner, attribute, code, _, _ = PLANTED[name]
    return mock.patch.object(owner, attribute, code)


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.slow
def test_a_planted_bug_in_the_simulation_of_parents_and_children_is_found(
    stages: TwoStages, name: str
) -> None:
    *_, first, says = PLANTED[name]
    with _plant(name):
        failure = _first_failure(stages, [first, *range(SEARCHED)])

    assert says in str(failure)
    assert f"scripts/prove/simulate --families --seed {failure.seed} --trace" in str(failure)


def _first_failure(stages: TwoStages, seeds: Sequence[int]) -> Failed:
    for seed in seeds:
        try:
            FamilySimulation(stages, seed).run()
        except Failed as failure:
            return failure
    raise AssertionError(f"none of {len(seeds)} seeds failed")
