"""The simulator's own view of the log (the watch). Entries that a server has forgotten may come back."""

import json
from typing import Any

import pytest

from tests.rigs.simulator.watch import Violated, Watch

LIFE, DIGEST, OTHER = "0" * 16, "1" * 32, "2" * 32


def started(epoch: int) -> list[Any]:
    return [f"{epoch}-0", ["type", "epoch_started", "at", "1", "by", "p", "data", '["created"]']]


def enqueued(epoch: int, seq: int, job_id: str) -> list[Any]:
    jobs = json.dumps([[job_id, seq, None, "a", "normal", 3, 3]])
    return [f"{epoch}-{seq}", ["type", "enqueued", "at", "1", "by", "p", "jobs", jobs]]


def of_job(seq: int, event: str, *facts: Any, by: str = "w") -> list[Any]:
    """Return entry ``7-seq`` about job ``a``, with the event's facts behind the id of the job."""
    jobs = json.dumps([["a", *facts]])
    return [f"7-{seq}", ["type", event, "at", "1", "by", by, "jobs", jobs]]


def takes(seq: int, entry: int, name: str, digest: str = DIGEST) -> list[Any]:
    """Return the event of a wait of job ``a`` that has taken signal 1."""
    return of_job(seq, "step_saved", "7-2", LIFE, entry, name, 4, digest, None, None, 1)


def signalled(seq: int, name: str) -> list[Any]:
    """Return the event of signal 1 to job ``a``."""
    return of_job(seq, "signalled", LIFE, 1, name, None, 4, DIGEST, by="p")


def failed_over() -> Watch:
    """Return a watch whose server has lost an acknowledged event. Job ``a`` runs under the fence 7-2."""
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a"), of_job(2, "claimed", 1)])
    kept = list(watch.log)
    watch.add([enqueued(7, 3, "lost")])
    watch.go_back(kept)
    return watch


def forgotten(watch: Watch) -> list[str]:
    return [str(entry.id) for entry in watch.forgotten]


def test_restoring_an_old_dump_after_a_flush_brings_the_entries_of_the_dump_back() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a")])
    kept = list(watch.log)
    watch.add([enqueued(7, 2, "b")])

    watch.go_back([])
    assert (watch.last, watch.records, forgotten(watch)) == ("0-0", {}, ["7-0", "7-1", "7-2"])
    watch.go_back(kept)
    assert (watch.last, set(watch.records), forgotten(watch)) == ("7-1", {"a"}, ["7-2"])

    watch.add([enqueued(7, 2, "c")])
    assert set(watch.records) == {"a", "c"}


def test_an_entry_that_reuses_the_number_of_a_lost_entry_does_not_replace_the_lost_entry() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a")])
    watch.go_back([])
    watch.add([started(7), enqueued(7, 1, "b")])

    watch.go_back(list(watch.log))

    assert set(watch.records) == {"b"}
    assert [event.job_id for entry in watch.forgotten for event in entry.jobs] == ["a"]


def test_the_simulator_requires_that_the_log_continues_after_the_last_restored_entry() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a")])
    watch.go_back(watch.log[:1])

    with pytest.raises(Violated, match=r"I5: 7-2 enqueued follows 7-0"):
        watch.add([enqueued(7, 2, "b")])


@pytest.mark.parametrize("digest", [DIGEST, OTHER], ids=["the same value", "another value"])
def test_a_new_signal_with_the_number_of_a_lost_signal_may_be_taken_once(digest: str) -> None:
    """The worker first saves again the wait that had taken the forgotten signal 1."""
    watch = failed_over()

    watch.add([signalled(3, "refusal"), takes(4, 1, "approval", digest), takes(5, 2, "refusal")])

    with pytest.raises(Violated, match="I21: signal 1 is taken twice"):
        watch.add([takes(6, 3, "refusal#2")])


def test_a_signal_that_a_failover_lost_may_be_taken_again_only_once() -> None:
    watch = failed_over()
    watch.add([takes(3, 1, "approval")])

    with pytest.raises(Violated, match="I21: signal 1 is taken twice"):
        watch.add([takes(4, 2, "refusal")])


def test_without_a_loss_a_wait_may_not_take_a_signal_of_another_name() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a"), of_job(2, "claimed", 1), signalled(3, "refusal")])

    with pytest.raises(Violated, match="I21: approval takes signal 1, which does not wait"):
        watch.add([takes(4, 1, "approval")])
