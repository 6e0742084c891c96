"""The outbox: its bounded length in a queue without a mirror, and which clients may trim it."""

import pytest

from rq_core import errors
from rq_core.model.events import decode
from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed, events_of
from tests.lua.contents.entries import T


@pytest.mark.damaged
def test_a_trim_keeps_the_last_mirrored_entry_and_can_be_repeated(seed: Seed) -> None:
    seed.enqueue("a")
    seed.attach()
    seed.enqueue("b")
    seed.enqueue("c")
    upto = seed.snapshot()["outbox"][2][0]

    seed.client.run(seed.client.calls.audit.trim("q", "db-1", upto, 1, 10))
    once = seed.snapshot()
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", upto, 1, 10))
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", f"{T}-1", 1, 10))

    assert once == seed.snapshot()
    assert upto == once["outbox"][0][0]


@pytest.mark.damaged
def test_a_trim_of_the_whole_outbox_sets_the_backlog_to_0(
    seed: Seed,
) -> None:
    seed.attach()
    seed.enqueue("a")
    seed.enqueue("b")
    first, last = (seed.snapshot()["outbox"][place][0] for place in (1, -1))

    seed.client.run(seed.client.calls.audit.trim("q", "db-1", first, 0, 0))
    assert seed.meta("backlog_jobs") == "2"
    seed.client.run(seed.client.calls.audit.trim("q", "db-1", last, 0, 0))

    assert (seed.meta("backlog_jobs"), seed.meta("backlog_bytes")) == ("0", "0")


def test_attaching_a_queue_begins_an_epoch_above_the_last_epoch_in_sql(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    seed.attach()
    epoch = int(seed.meta("epoch") or 0)

    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch))
    assert seed.meta("epoch") == str(epoch)
    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch + 5_000))
    once = seed.snapshot()
    seed.client.run(seed.client.calls.audit.attach("q", "db-1", epoch + 5_000))

    assert seed.snapshot() == once
    entries = [decode(at, raw) for at, raw in once["outbox"]][-3:]
    begun = entries[0].id.epoch
    assert begun > epoch + 5_000
    assert [str(entry.id) for entry in entries] == [f"{begun}-{n}" for n in range(3)]
    assert [entry.event for entry in entries] == ["epoch_started", "baseline", "policy_changed"]
    assert entries[0].data["reason"] == "behind"
    assert entries[0].data["last"] == f"{epoch}-1"
    assert entries[1].jobs[0].job_id == "a"


def test_only_the_attached_database_can_trim_and_detach(seed: Seed) -> None:
    seed.enqueue("a")
    with pytest.raises(errors.AuditOff):
        seed.client.run(seed.client.calls.audit.trim("q", "db-1", f"{T}-1", 1, 10))
    seed.attach("db-1")
    before = seed.snapshot()

    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.client.run(seed.client.calls.audit.trim("q", "db-2", f"{T}-1", 1, 10))
    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.attach("db-2")
    with pytest.raises(errors.AuditElsewhere, match="db-1"):
        seed.client.run(seed.client.calls.audit.detach("q", "db-2"))
    assert before == seed.snapshot()


def test_a_queue_that_was_attached_once_refuses_an_audit_database_with_another_stamp(
    seed: Seed,
) -> None:
    calls = seed.client.calls
    assert seed.client.run(calls.reads.stamp("q")) is None
    seed.enqueue("a")
    seed.attach()
    assert seed.client.run(calls.reads.stamp("q")) == ""

    seed.client.run(calls.audit.attach("q", "db-1", stamp="s-1"))
    once = seed.snapshot()
    seed.client.run(calls.audit.attach("q", "db-1", stamp="s-1"))
    seed.attach()
    with pytest.raises(errors.AuditStampDiffers, match="s-1"):
        seed.client.run(calls.audit.attach("q", "db-1", T + 10**6, "s-2"))

    assert seed.snapshot() == once
    seed.client.run(calls.audit.detach("q", "db-1"))
    assert seed.client.run(calls.reads.stamp("q")) == "s-1"


def test_attaching_with_a_complete_outbox_starts_no_epoch(seed: Seed) -> None:
    seed.enqueue("a")
    log = seed.snapshot()["outbox"]

    seed.attach()
    seed.attach()

    assert log == seed.snapshot()["outbox"]
    assert ("on", "done") == (seed.meta("audit"), seed.meta("baseline"))


@pytest.mark.damaged
def test_attaching_with_a_trimmed_outbox_writes_a_baseline(seed: Seed) -> None:
    """The baseline lists every live job, so that ``audit verify`` can begin with it."""
    seed.running("running")
    seed.cancelling("cancelling", attempts=7)
    seed.dead("dead", losses=9)
    seed.enqueue("ready")
    seed.enqueue("scheduled", delay_ms=9_000)
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)

    seed.attach()

    snapshot = seed.snapshot()
    epoch = int(seed.meta("epoch") or 0)
    assert epoch > T
    entries = [e for e in seed.entries() if e.id.epoch == epoch]
    assert ["epoch_started", "baseline", "policy_changed"] == [str(e.event) for e in entries]
    assert entries[0].data["reason"] == "attached"
    assert 5 == len(entries[1].jobs)
    assert seed.meta("baseline") == "done"
    snapshot["outbox"] = snapshot["outbox"][1:]


@pytest.mark.damaged
def test_the_next_attach_completes_a_baseline_that_was_interrupted(seed: Seed) -> None:
    seed.enqueue("a")
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    plan = seed.calls.audit.attach("q", "db-1")
    reply = None
    while seed.meta("baseline") != "pending":
        reply = seed.client._transport.exchange(plan.send(reply).commands)  # type: ignore[union-attr]
    plan.close()

    seed.attach()

    assert seed.meta("baseline") == "done"
    assert [str(e.event) for e in seed.entries()].count("epoch_started") == 1
    assert events_of(seed.entries(), "a")[-1] == "baseline"


def test_detaching_a_queue_is_logged_and_ends_the_count_of_its_backlog(seed: Seed) -> None:
    seed.enqueue("a")
    seed.attach()
    seed.enqueue("b")
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))
    seed.client.run(seed.client.calls.audit.detach("q", "db-1"))

    last = seed.entries()[-1]
    assert ("policy_changed", {"field": "audit", "old": "on", "new": "off"}) == (
        last.event,
        last.data,
    )
    assert ("off", "0") == (seed.meta("audit"), seed.meta("backlog_jobs"))
    seed.attach("db-2")
    assert seed.meta("audit_id") == "db-2"


@pytest.mark.damaged
def test_the_outbox_is_bounded_without_a_mirror(seed: Seed) -> None:
    """The memory depends on the number of live jobs, and not on the length of the history."""
    with seed.control.pipeline(transaction=False) as pipe:
        seed.client.run(seed.client.calls.delivery.handshake("q"))
        made = seed.calls.delivery._script("configure")
        pipe.execute_command(*made.loading)
        for n in range(2_500):
            args = {"slot": "ring", "number": n + 1, "by": "x", "why": ""}
            pipe.execute_command(*made.command(seed.keys, [("paused", (n + 1) % 2)], **args))
        pipe.execute()

    length = len(seed.snapshot()["outbox"])
    assert 1_000 <= length <= 1_200
    assert_consistent(seed.snapshot(), whole_log=False)
    seed.enqueue("a")
    seed.attach()
    assert int(seed.meta("epoch") or 0) > T
