"""Parked jobs whose signal has arrived, after a script that failed between its events. The doctor wakes these jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rq_core.doctor.finding import Kind
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.broken import broken_after
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend
from tests.kit.scenes import SLOT, Scene
from tests.kit.seed import LIFE, WORKER, Seed, events_of


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        auditlog.drain(Mirror(Outbox(made.client), database, made.queue))
        made.enqueue("first")
        auditlog.drain(Mirror(Outbox(made.client), database, made.queue))
        made.complete(*made.claim().jobs)
        yield made


def signal(seed: Seed, name: str = "approval", value_max: int = 100) -> Scene:
    """Park a job that waits for `approval`. Return the call that sends the signal ``name`` to this job."""
    claim = seed.running("a")
    seed.wait(claim, "+5000")
    seed.park(claim)
    record = ("a", name, "k", LIFE, digest_of("7"), "7")
    args = {"slot": SLOT, "number": 1, "by": "ann", "why": "asked", "value_max": value_max}
    return Scene("signal", args, [record])


def park(seed: Seed) -> Scene:
    """Let a job begin a wait, and send its signal. Return the call that parks the job."""
    claim = seed.running("a")
    seed.wait(claim, "+5000")
    seed.signal("a", value="7", key="k", value_max=100)
    args = {"slot": SLOT, "number": 1, "worker": WORKER}
    return Scene("park", args, [("a", claim.fence, "1", LIFE, "")])


def assert_taken(seed: Seed, database: Database) -> None:
    """Let a worker take the signal and complete the job. Assert that verify accepts the log."""
    claim = seed.claim_one("a")
    assert {} == seed.wait(claim)
    seed.complete(claim)
    auditlog.drain(Mirror(Outbox(seed.client), database, seed.queue))
    assert LogVerdict.HOLDS is verify(database).verdict
    assert ([], []) == compare(seed.client, database, seed.queue)


@pytest.mark.parametrize("scene", [signal, park])
def test_the_doctor_wakes_a_job_that_a_broken_script_left_parked(
    seed: Seed, database: Database, scene: Callable[[Seed], Scene]
) -> None:
    assert broken_after(1, seed, scene(seed))
    assert "woken" not in events_of(seed.entries(), "a")
    seed.live(1)  # A wake in the millisecond of the signal would be one by the same call.

    assert [] == mend(seed)

    assert_consistent(seed.snapshot(), whole_log=False)
    (woken,) = [entry for entry in seed.entries() if entry.event is Event.WOKEN]
    (job,) = woken.jobs
    assert ("ada", "doctor", "a", 1) == (woken.by, woken.why, job.job_id, job.fields["cause"])
    assert_taken(seed, database)


def test_the_doctor_wakes_a_parked_job_whose_signal_has_arrived_only_with_repair(
    seed: Seed,
) -> None:
    assert broken_after(1, seed, signal(seed))
    box = {
        LIFE: "job=a entries=1 bytes=1 mail=1",
        f"{LIFE}>1": f"approval at={seed.now} digest={digest_of('7')} key=k\n7",
        f"{LIFE}>approval": "1",
        f"{LIFE}=k": "1",
    }
    seed.control.hset(seed.keys("boxes"), mapping=box)

    (found,) = look(seed)

    says = "job a is parked, and the signal approval, for which it waits, is there"
    assert (Kind.RIPE, says, True, []) == (found.kind, found.says, found.mendable, found.keys)
    assert str(seed.state("a")).startswith("parked ")
    assert [] == mend(seed)
    assert str(seed.state("a")).startswith("ready ")


def test_a_signal_whose_value_the_log_lacks_is_reported_until_it_is_sent_again(
    seed: Seed, database: Database
) -> None:
    assert broken_after(1, seed, signal(seed, value_max=0))

    (left,) = mend(seed)

    assert (Kind.NO_SIGNAL, "a", False) == (left.kind, left.job_id, left.mendable)
    assert "job a has lost signal 1, approval" in left.says
    assert ["woken"] == [each.outcome for each in seed.signal("a", value="7", key="k")]
    assert [] == look(seed)
    assert_taken(seed, database)


def test_the_doctor_keeps_a_half_written_signal_for_which_the_job_does_not_wait(
    seed: Seed, database: Database
) -> None:
    assert broken_after(1, seed, signal(seed, "refusal"))

    assert [] == mend(seed)

    assert str(seed.state("a")).startswith("parked ")
    assert "known" == seed.signal("a", name="refusal", value="7", key="k")[0].outcome
    seed.signal("a", value="7", value_max=100)
    assert_taken(seed, database)


def test_the_doctor_wakes_a_parked_job_whose_timeout_is_missing_in_the_index(
    seed: Seed, database: Database
) -> None:
    signal(seed)
    seed.live(6_000)
    seed.control.zrem(seed.keys("scheduled"), "job|a")

    assert [] == mend(seed)

    assert_taken(seed, database)
