"""The simulator's own view of the log (the watch). Entries that a server has forgotten may come back."""

import json
from typing import Any

import pytest

from tests.rigs.simulator.watch import Violated, Watch


def started(epoch: int) -> list[Any]:
    return [f"{epoch}-0", ["type", "epoch_started", "at", "1", "by", "p", "data", '["created"]']]


def enqueued(epoch: int, seq: int, job_id: str) -> list[Any]:
    jobs = json.dumps([[job_id, seq, None, "a", "normal", 3, 3]])
    return [f"{epoch}-{seq}", ["type", "enqueued", "at", "1", "by", "p", "jobs", jobs]]


def forgotten(watch: Watch) -> list[str]:
    return [str(entry.id) for entry in watch.forgotten]


def test_an_old_dump_that_is_restored_after_a_flush_brings_its_entries_back() -> None:
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


def test_an_entry_that_reuses_a_forgotten_number_does_not_replace_the_forgotten_entry() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a")])
    watch.go_back([])
    watch.add([started(7), enqueued(7, 1, "b")])

    watch.go_back(list(watch.log))

    assert set(watch.records) == {"b"}
    assert [event.job_id for entry in watch.forgotten for event in entry.jobs] == ["a"]


def test_the_log_must_continue_after_the_last_restored_entry() -> None:
    watch = Watch()
    watch.add([started(7), enqueued(7, 1, "a")])
    watch.go_back(watch.log[:1])

    with pytest.raises(Violated, match=r"I5: 7-2 enqueued follows 7-0"):
        watch.add([enqueued(7, 2, "b")])
