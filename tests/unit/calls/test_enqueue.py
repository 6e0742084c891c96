"""Enqueues of many jobs in chunks. Each error has the jobs that were accepted before it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import errors
from rq_core.app.limits.lane_assignment import full_rules
from rq_core.model.job import NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK as CHUNK
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.engine.plan import ReplyError
from tests.unit.calls.scripted import OK, Server, job, plans, read


def test_the_error_of_an_interrupted_enqueue_carries_the_accepted_jobs() -> None:
    server = Server(enqueue=[OK, ReplyError("OOM full")])

    with pytest.raises(errors.QueueFull) as caught:
        server.run(plans(server).enqueue.many(job(n) for n in range(CHUNK + 10)))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]


def test_an_error_that_a_generator_raises_carries_the_accepted_jobs() -> None:
    server = Server(enqueue=[OK])

    def jobs() -> Any:
        yield from (job(n) for n in range(CHUNK + 10))
        raise errors.ArgumentsInvalid(task="t", problems="x: is required")

    with pytest.raises(errors.ArgumentsInvalid) as caught:
        server.run(plans(server).enqueue.many(jobs()))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Unchangeable(Exception):
    """An exception that accepts no new attributes, as in some libraries."""

    number: int


def test_an_error_from_a_producers_generator_stays_unchanged_if_no_attribute_can_be_set_on_the_error() -> (
    None
):
    def jobs() -> Any:
        yield from (job(n) for n in range(CHUNK + 10))
        raise Unchangeable(7)

    server = Server(enqueue=[OK])

    with pytest.raises(Unchangeable):
        server.run(plans(server).enqueue.many(jobs()))


@pytest.mark.parametrize("lets_prepare", [True, False])
def test_enqueue_reads_a_generator_one_chunk_at_a_time(lets_prepare: bool) -> None:
    asked = 0
    at_call: list[int] = []

    def jobs() -> Any:
        nonlocal asked
        for n in range(2 * CHUNK + 10):
            asked += 1
            yield job(n)

    def answer(_: Any) -> list[str]:
        at_call.append(asked)
        return OK

    server = Server(enqueue=[answer])
    server.lets_prepare = lets_prepare

    server.run(plans(server).enqueue.many(jobs()))

    assert at_call == [CHUNK, 2 * CHUNK, 2 * CHUNK + 10]


def test_enqueue_prepares_the_next_chunk_while_a_chunk_is_being_sent() -> None:
    asked = 0
    after_sending: list[int] = []

    def jobs() -> Any:
        nonlocal asked
        for n in range(2 * CHUNK + 10):
            asked += 1
            yield job(n)

    class Slow(Server):
        def exchange(self, commands: Any, *how: Any) -> list[Any]:
            replies = super().exchange(commands, *how)
            if "enqueue" in {read(list(command))[0] for command in commands}:
                after_sending.append(asked)
            return replies

    server = Slow(enqueue=[OK])

    server.run(plans(server).enqueue.many(jobs()))

    assert after_sending == [2 * CHUNK, 2 * CHUNK + 10, 2 * CHUNK + 10]


def test_an_error_that_a_generator_raises_carries_the_jobs_of_the_chunk_being_sent() -> None:
    def jobs() -> Any:
        yield from map(job, range(CHUNK + 10))
        raise errors.InvalidOption(option="x", value=1, must="be another")

    server = Server(enqueue=[OK])

    with pytest.raises(errors.InvalidOption) as caught:
        server.run(plans(server).enqueue.many(jobs()))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]
    assert len(server.sent("enqueue")) == 1


def test_a_prepared_chunk_is_not_sent_if_the_chunk_before_it_is_refused() -> None:
    server = Server(enqueue=[OK, ["refused", "audit_backlog", "9", "8"]])

    with pytest.raises(errors.AuditBacklogFull) as caught:
        server.run(plans(server).enqueue.many(map(job, range(3 * CHUNK + 10))))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]
    assert len(server.sent("enqueue")) == 2


def test_an_enqueue_call_sends_the_common_fields_of_its_jobs_once() -> None:
    server = Server(enqueue=[OK])
    mixed = [
        NewJob(f"job-{n}", "q", profile("task", priority), "{}", delay_ms)
        for n in range(80)
        for priority, delay_ms in [(Priority.LOW, 0), (Priority.HIGH, 0), (Priority.LOW, 5)]
    ]

    server.run(plans(server).enqueue.many(mixed))

    (sent,) = server.sent("enqueue")
    assert [kind[:2] for kind in json.loads(sent["kinds"])] == [[3, 0], [1, 0], [3, 5]]
    assert sent["each"][1::5] == ["1", "2", "3"] * 80


def test_jobs_of_several_queues_keep_their_order_within_each_queue() -> None:
    server = Server(enqueue=[OK])

    accepted = server.run(plans(server).enqueue.many([job(1, "a"), job(2, "b"), job(3, "a")]))

    assert [args["each"][::5] for args in server.sent("enqueue")] == [["job-1", "job-3"], ["job-2"]]
    assert accepted.ids == ("job-1", "job-3", "job-2")


@pytest.mark.parametrize(
    ("refused", "ids", "duplicates"),
    [
        ([], ("job-1", "job-2", "job-1"), ()),
        ([2], ("job-1", "job-1"), ("job-2",)),
        ([3], ("job-1", "job-2"), ("job-1",)),
        ([1, 3], ("job-2",), ("job-1", "job-1")),
    ],
)
def test_the_answer_to_an_enqueue_separates_duplicates_from_accepted_jobs(
    refused: list[int], ids: tuple[str, ...], duplicates: tuple[str, ...]
) -> None:
    answer = [fact for place in refused for fact in (str(place), "duplicate", "-")]
    server = Server(enqueue=[["ok", *answer]])

    accepted = server.run(plans(server).enqueue.many([job(1), job(2), job(1)]))

    assert (accepted.ids, accepted.duplicates) == (ids, duplicates)


def test_the_answer_to_an_enqueue_has_the_scope_of_a_discarded_or_rejected_job() -> None:
    answer = ["1", "discarded", "task=t", "3", "rejected", "2+task=t"]
    server = Server(enqueue=[["ok", *answer]])

    accepted = server.run(plans(server).enqueue.many([job(1), job(2), job(3)]))

    assert accepted == Accepted(("job-2",), (), (("job-1", "task=t"),), (("job-3", "2+task=t"),))
    assert accepted.others() == {
        "job-1": Accepted((), (), (("job-1", "task=t"),)),
        "job-3": Accepted((), (), (), (("job-3", "2+task=t"),)),
    }


@pytest.mark.parametrize("rules", [1, 8, 32, 5_000])
def test_an_enqueue_call_has_fewer_jobs_if_each_job_has_more_rules(
    rules: int,
) -> None:
    """A call of 250 jobs with many rules each would block Redis for tens of milliseconds."""
    server = Server(enqueue=[OK])
    full = full_rules(("reject", f"k{n}=x|1000") for n in range(rules))
    jobs = [
        NewJob(f"job-{n}", "q", profile("task"), "{}", lane="2+k=x", full=full)
        for n in range(CHUNK)
    ]

    server.run(plans(server).enqueue.many(jobs))

    counts = [len(sent["each"]) // 5 for sent in server.sent("enqueue")]
    assert sum(counts) == CHUNK
    assert all(count * rules <= 1_000 or count == 1 for count in counts)
    assert (max(counts) == CHUNK // 2) is (rules == 1)
