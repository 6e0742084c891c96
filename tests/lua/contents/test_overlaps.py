"""The rules for overlaps: what an instant does while an earlier job of the schedule is alive.

Each rule is tested with each state of the earlier job. A changed schedule fires no instant from before the change.
"""

from collections.abc import Callable

import pytest

from rq_core.model.job import Claim
from tests.kit.seed import Seed
from tests.lua.contents.ticking import EVERY_MS, fire, put, stored, told, until_due

HOUR_MS = 3_600_000

STATES = ("ready", "running", "cancelling", "dead", None)
"""The states of the job that the previous instant enqueued. None means that the job has left Redis."""

# By the former job's state: what becomes of the instant, the former job's state after it, and who can be claimed then.
TABLE = {
    "skip": (
        ("skipped", "ready", "former"),
        ("skipped", "running", ""),
        ("skipped", "cancelling", ""),
        ("fired", "dead", "new"),
        ("fired", None, "new"),
    ),
    "allow": (
        ("fired", "ready", "former new"),
        ("fired", "running", "new"),
        ("fired", "cancelling", "new"),
        ("fired", "dead", "new"),
        ("fired", None, "new"),
    ),
    "queue": (
        ("skipped", "ready", "former"),
        ("fired", "running", ""),
        ("fired", "cancelling", ""),
        ("fired", "dead", "new"),
        ("fired", None, "new"),
    ),
    "replace": (
        ("fired", None, "new"),
        ("fired", "cancelling", ""),
        ("fired", "cancelling", ""),
        ("fired", "dead", "new"),
        ("fired", None, "new"),
    ),
}
CELLS = [
    (overlap, state, *cell)
    for overlap, row in TABLE.items()
    for state, cell in zip(STATES, row, strict=True)
]


def bring(seed: Seed, state: str | None) -> tuple[str, Claim | None]:
    """Fire an instant of the schedule, and bring its job into this state. Return the job's id, and its claim or
    None."""
    until_due(seed)
    fire(seed)
    job_id = told(seed)[0][0]
    if state == "ready":
        return job_id, None
    claim = seed.claim_one(job_id)
    if state == "cancelling":
        seed.cancel(job_id)
    elif state == "dead":
        seed.fail(claim, verdict="final")
    elif state is None:
        seed.complete(claim)
    return job_id, claim


def state_of(seed: Seed, job_id: str) -> str | None:
    if job_id in seed.snapshot()["jobs"] and seed.state(job_id) is None:
        return "ready"  # The line of a plain job is in its value.
    line = seed.state(job_id)
    return line.split(" ")[0] if line else None


@pytest.mark.parametrize(("overlap", "state", "outcome", "after", "claimable"), CELLS)
def test_an_instant_of_a_schedule_follows_the_rule_for_overlaps_while_an_earlier_job_is_alive(
    seed: Seed, overlap: str, state: str | None, outcome: str, after: str | None, claimable: str
) -> None:
    put(seed, every=10, overlap=overlap)
    former, claim = bring(seed, state)
    assert state == state_of(seed, former)
    until_due(seed)
    if claim is not None and state in ("running", "cancelling"):
        seed.extend([claim])

    assert outcome == fire(seed)["beat"].outcome

    names = {former: "former", told(seed)[1][0]: "new"}
    assert after == state_of(seed, former)
    assert claimable.split() == [names[each.id] for each in seed.claim().jobs]


def edit(seed: Seed) -> None:
    put(seed, every=7)


def edit_live(seed: Seed) -> None:
    put(seed, every=7, source="live")


def pause_and_resume(seed: Seed) -> None:
    change(seed, "pause")
    seed.live(3 * EVERY_MS)
    change(seed, "resume")


def remove_and_resume(seed: Seed) -> None:
    change(seed, "remove")
    seed.live(3 * EVERY_MS)
    change(seed, "resume")


def remove_and_declare(seed: Seed) -> None:
    change(seed, "remove")
    seed.live(3 * EVERY_MS)
    put(seed, source="live")


def set_the_clock_back(seed: Seed) -> None:
    seed.clock.set(seed.now - HOUR_MS)
    put(seed)
    change(seed, "pause")
    change(seed, "resume")


def change(seed: Seed, what: str) -> None:
    made = seed.client.run(seed.client.calls.schedules.change(seed.queue, "beat", what))
    assert made.outcome == "changed"


CHANGES = (
    edit, edit_live, pause_and_resume, remove_and_resume, remove_and_declare, set_the_clock_back,
)  # fmt: skip


@pytest.mark.parametrize("changed", CHANGES)
@pytest.mark.parametrize("is_due", [False, True])
def test_a_changed_schedule_fires_no_instant_from_before_the_change(
    seed: Seed, changed: Callable[[Seed], None], is_due: bool
) -> None:
    put(seed, every=10, overlap="allow")
    until_due(seed)
    fire(seed)
    last = stored(seed).last_ms
    # An instant that is due when the change comes is not run after it.
    seed.live(2 * EVERY_MS + 500 if is_due else 500)

    changed(seed)
    floor = max(seed.now, last)
    for _ in range(3):
        until_due(seed)
        fire(seed)

    instants = [each[3] for each in told(seed)]
    assert [last] == instants[:1]
    assert len(instants) == 4
    assert sorted(set(instants)) == instants
    assert all(each > floor for each in instants[1:])
