"""Boxes of durable jobs that a client changed. The doctor compares each value with the digest beside it.

No worker continues a job whose box contradicts itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.doctor.box_check import members_of_boxes
from rq_core.doctor.finding import Kind
from rq_core.errors import QueueDamaged
from rq_core.model.keys import queue_keys
from rq_core.model.unique_names import digest_of
from tests.kit.doctor import look
from tests.kit.seed import LIFE, WORKER, Seed


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        yield made


@pytest.mark.parametrize("what", ["step", "signal"])
def test_a_changed_value_of_a_step_or_a_signal_is_found(seed: Seed, what: str) -> None:
    claim = seed.running("a")
    seed.save(claim, value='"ch_1"')
    seed.signal("a", value="7", key="k", value_max=100)
    boxes = queue_keys(seed.queue)("boxes")
    member = f"{LIFE}|1" if what == "step" else f"{LIFE}>1"
    text = str(seed.control.hget(boxes, member))
    old, new = ('"ch_1"', '"ch_2"') if what == "step" else ("7", "8")
    assert digest_of(old) in text
    assert Kind.BOX_DIFFERS not in {each.kind for each in look(seed)}

    seed.control.hset(boxes, member, text.replace(f"\n{old}", f"\n{new}"))

    (found,) = [each for each in look(seed) if each.kind is Kind.BOX_DIFFERS]
    assert (found.job_id, found.mendable) == ("a", False)
    assert f"the value of {what}" in found.says


def test_a_job_whose_saved_step_was_overwritten_in_redis_does_not_continue(
    seed: Seed,
) -> None:
    """Checks that the overwritten step does not run again."""
    claim = seed.running("a")
    for number, name in enumerate(("charge", "receipt", "mail"), 1):
        seed.save(claim, entry=number, name=name)
    read = seed.client.calls.reads.box(seed.queue, "a", claim.fence, WORKER)
    box = seed.client.run(read)
    assert box is not None
    assert 3 == len(box.entries)

    boxes = queue_keys(seed.queue)("boxes")
    seed.control.hset(boxes, f"{LIFE}|3", str(seed.control.hget(boxes, f"{LIFE}|1")))

    with pytest.raises(QueueDamaged, match="two entries have the name charge"):
        seed.client.run(seed.client.calls.reads.box(seed.queue, "a", claim.fence, WORKER))


def test_the_doctor_does_not_mistake_the_list_of_all_signals_named_7_for_the_signal_with_number_7(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.save(claim)
    seed.signal("a", name="7")
    found = seed.snapshot()["boxes"]

    expected = dict(members_of_boxes(found, {LIFE: "a"}))

    assert (found[LIFE], "1") == (expected[LIFE], expected[f"{LIFE}>7"])
