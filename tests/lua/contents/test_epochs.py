"""The calls that begin a new epoch, and the first entry of the epoch in the outbox."""

import pytest

from rq_core import errors
from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import LAYOUT
from tests.kit.failover import fail_over
from tests.kit.seed import LEASE_MS, Seed
from tests.lua.contents.entries import T


def test_the_first_epoch_begins_when_the_queue_is_created(seed: Seed) -> None:
    met = seed.client.run(seed.client.calls.delivery.handshake("q"))
    again = seed.client.run(seed.client.calls.delivery.handshake("q"))

    assert (T, T, LEASE_MS, False, False, None) == (
        met.epoch, met.now_ms, met.lease_ms, met.paused, met.audit, met.audit_id,
    )  # fmt: skip
    assert ("created", None) == (met.started, again.started)
    replid = seed.control.info("replication")["master_replid"]
    assert seed.snapshot()["outbox"] == [
        (
            f"{T}-0",
            {"type": "epoch_started", "at": str(T), "by": "c-1",
             "data": f'["created",null,null,"{replid}",null,false]'},
        )
    ]  # fmt: skip


def test_a_failover_starts_an_epoch_and_leaves_claims_in_force(seed: Seed) -> None:
    claim = seed.running("a")
    before = seed.meta("replid")
    fail_over(seed.control)
    seed.advance(LEASE_MS * 3)

    assert seed.claim().jobs == ()

    started = seed.entries()[-1]
    assert started.data == {
        "reason": "replid_changed",
        "old_epoch": T,
        "old_replid": before,
        "replid": seed.meta("replid"),
        "last": f"{T}-2",
        "went_on": False,
    }
    assert seed.meta("no_reap_before") == str(seed.now + LEASE_MS)
    assert seed.complete(claim) == {}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_failover_does_not_change_the_settings(seed: Seed, name: str) -> None:
    """A new epoch must not reset a setting to its default without an event in the log."""
    value = SETTINGS[name].default + 1
    seed.client.run(seed.client.calls.admin.configure("q", {name: value}))
    fail_over(seed.control)
    seed.claim()

    assert str(value) == seed.meta(name)


@pytest.mark.parametrize("garbage", ["x", '"', "1.5", "-1", "1 2"])
def test_the_event_of_a_new_epoch_has_null_for_an_old_epoch_that_is_unreadable(
    seed: Seed, garbage: str
) -> None:
    """The event is valid JSON, so the mirror does not put it into quarantine."""
    seed.enqueue("a")
    seed.control.hset(seed.keys("meta"), "epoch", garbage)
    fail_over(seed.control)

    seed.client.run(seed.calls.delivery.handshake("q"))

    started = seed.entries()[-1]
    assert (started.data["reason"], started.data["old_epoch"]) == ("replid_changed", None)


def test_a_new_epoch_is_greater_than_every_earlier_epoch_regardless_of_the_clock(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    seed.clock.set(T - 10**9)
    fail_over(seed.control)
    seed.enqueue("b")
    epochs = [T, int(seed.meta("epoch") or 0)]
    seed.calls.delivery.set_floor("q", T + 10**9)
    fail_over(seed.control)
    seed.enqueue("c")
    epochs += [T + 10**9, int(seed.meta("epoch") or 0)]
    seed.control.delete(seed.keys("meta"))
    seed.calls.delivery.set_floor("q", 0)
    seed.enqueue("d")
    epochs.append(int(seed.meta("epoch") or 0))

    assert epochs == sorted(set(epochs))


@pytest.mark.damaged
def test_a_lost_outbox_starts_an_epoch(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.delete(seed.keys("outbox"))
    seed.enqueue("b")

    entries = seed.entries()
    assert ["epoch_started", "enqueued"] == [str(e.event) for e in entries]
    assert ("outbox_lost", None) == (entries[0].data["reason"], entries[0].data["last"])
    assert entries[1].id == (entries[0].id.epoch, 1)
    assert entries[0].id > (T, 1)


def test_jobs_keep_their_order_when_the_key_meta_is_lost(seed: Seed) -> None:
    """The lost key had the counter for places in line. New jobs must still come after old jobs."""
    claim = seed.running("held", priority="normal")
    seed.enqueue("a")
    seed.control.delete(seed.keys("meta"))
    seed.enqueue("b")
    seed.rollback(claim)

    assert ["held", "a", "b"] == [c.id for c in seed.claim().jobs]


def test_a_queue_begins_again_with_a_first_epoch_after_flushall(seed: Seed) -> None:
    seed.enqueue("a")
    claim = seed.claim_one("a")
    seed.control.flushall()
    seed.clock.set(T + 5)

    assert seed.complete(claim) == {"a": "gone"}
    assert ["epoch_started", "settlement_refused"] == [str(e.event) for e in seed.entries()]
    assert seed.meta("epoch") == str(T + 5)
    assert ["q"] == seed.client.run(seed.client.calls.reads.queues())


def test_a_queue_with_another_layout_of_keys_is_refused(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.hset(seed.keys("meta"), "layout", str(LAYOUT + 1))
    seed.advance(1_000)
    before = seed.snapshot()

    with pytest.raises(errors.LayoutMismatch):
        seed.enqueue("b")
    with pytest.raises(errors.LayoutMismatch):
        seed.client.run(seed.client.calls.delivery.handshake("q"))
    assert before == seed.snapshot()
