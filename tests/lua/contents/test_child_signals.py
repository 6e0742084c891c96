"""The signals that children have ended, to a parent that is parked."""

import pytest

from rq_core.protocol.calls.boxes import Sending, Sent, send_signals
from tests.kit.seed import LIFE, QUEUE, Seed

OTHER = "f" * 16
WAKES, NOT_SENT, GONE = Sent("woken", 1), Sent("waits", None), Sent("gone", None)


def park(seed: Seed, *children: int) -> None:
    """Park a parent that waits for the ends of these children, each the child of a map of its own."""
    claim = seed.running("a")
    for entry, child in enumerate(children, 1):
        seed.wait(claim, "", name=f"rq_core.child.1.{child}", entry=entry)
    seed.park(claim, waits=",".join(map(str, range(1, len(children) + 1))))


def told(seed: Seed, *children: int, life: str = LIFE) -> list[Sent]:
    """Send the signals of these children in one call, and return the answers."""
    records = [Sending("a", f"rq_core.child.1.{n}", "", "null", life) for n in children]
    return seed.client.run(send_signals(QUEUE, records, by="w"))


@pytest.mark.parametrize(
    ("waits", "ended", "answers"),
    [
        ((12,), (1,), [NOT_SENT]),
        ((1,), (12,), [NOT_SENT]),
        ((12,), (12,), [WAKES]),
        ((3, 12), (12,), [WAKES]),
        ((3, 12), (4,), [NOT_SENT]),
        ((12,), (11, 12), [NOT_SENT, WAKES]),
    ],
)
def test_a_parked_parent_is_woken_only_by_the_child_for_which_it_waits(
    seed: Seed, waits: tuple[int, ...], ended: tuple[int, ...], answers: list[Sent]
) -> None:
    park(seed, *waits)
    before = seed.snapshot()

    assert answers == told(seed, *ended)
    after = seed.snapshot()
    assert (before["boxes"] == after["boxes"]) is (WAKES not in answers)
    assert (before["state"] == after["state"]) is (WAKES not in answers)


def test_the_signal_of_a_child_is_refused_if_the_parent_has_another_id_for_its_steps_by_now(
    seed: Seed,
) -> None:
    park(seed, 12)

    assert [GONE, GONE] == told(seed, 11, 12, life=OTHER)


def test_a_parent_that_runs_keeps_the_signals_of_all_its_children(seed: Seed) -> None:
    seed.wait(seed.running("a"), "", name="rq_core.child.1.12")

    assert [Sent("sent", 1), Sent("sent", 2)] == told(seed, 11, 12)
