"""The times at which a client that waits for jobs polls each of them."""

from __future__ import annotations

import itertools

import pytest

from rq_core.errors import ServerUnavailable
from rq_core.model.outcome import Gone
from rq_core.protocol.reads.wait_schedule import (
    GRAINS,
    HEARD_S,
    TOGETHER_MAX,
    UNHEARD_S,
    JobWait,
    Nothing,
    Told,
    Waits,
)


def looks(deadline: float, until: float = 1e9) -> tuple[list[float], list[Told]]:
    """Return when a job that never ends is polled (s), and how its wait ends."""
    told: list[Told] = []
    waits, times = Waits(), []
    waits.add(JobWait("q", "a", deadline, told.append), 0.0)
    while (at := waits.next_at()) is not None and at <= until:
        times.append(at)
        for wait in waits.due(at)["q"]:
            waits.looked(wait, None, at, at)
    return times, told


def test_polls_of_an_awaited_job_become_rarer_but_continue() -> None:
    times, told = looks(1e6, until=10.0)

    pauses = [b - a for a, b in itertools.pairwise(times)]
    assert [*UNHEARD_S] == pytest.approx(pauses[: len(UNHEARD_S)])
    assert {UNHEARD_S[-1]} == {round(pause, 6) for pause in pauses[len(UNHEARD_S) :]}
    assert [] == told


def test_an_awaited_job_is_polled_for_the_last_time_at_the_timeout_of_its_wait() -> None:
    """Otherwise the wait would miss an end that comes after its regular polls and before the timeout."""
    times, told = looks(0.777)

    assert 0.777 == times[-1]
    assert [Nothing.ALIVE] == told


def test_a_poll_that_began_before_the_timeout_of_a_wait_is_not_the_last_poll() -> None:
    told: list[Told] = []
    waits = Waits()
    waits.add(JobWait("q", "a", 1.0, told.append), 0.0)
    ((wait,),) = waits.due(0.0).values()
    waits.looked(wait, None, 1.5, 0.9)

    assert 1.0 == waits.next_at()
    assert [] == told


def test_awaited_jobs_of_a_queue_whose_polls_are_due_are_polled_together() -> None:
    waits = Waits()
    for n in range(10):
        waits.add(JobWait("ab"[n % 2], str(n), 9.0, lambda _: None), n / 1000)

    due = waits.due(0.0)

    assert {"a": 5, "b": 5} == {queue: len(found) for queue, found in due.items()}
    assert waits.next_at() is None


def test_a_wait_that_its_caller_gave_up_is_not_polled() -> None:
    told: list[Told] = []
    waits = Waits()
    wait = JobWait("q", "a", 9.0, told.append)
    waits.add(wait, 0.0)
    wait.over = True

    assert waits.next_at() is None
    assert {} == waits.due(9.0)
    assert [] == waits.all()


def test_the_end_of_a_wait_is_reported_once() -> None:
    told: list[Told] = []
    waits = Waits()
    waits.add(JobWait("q", "a", 9.0, told.append), 0.0)
    ((wait,),) = waits.due(0.0).values()
    waits.looked(wait, Gone("a"), 0.1, 0.0)
    waits.looked(wait, Gone("a"), 0.1, 0.0)

    assert [Gone("a")] == told
    assert waits.next_at() is None


def test_a_wait_that_times_out_raises_the_error_of_its_last_poll() -> None:
    told: list[Told] = []
    waits, trouble = Waits(), ServerUnavailable(url="redis://x", why="away")
    waits.add(JobWait("q", "a", 0.0, told.append), 0.0)
    ((wait,),) = waits.due(0.0).values()
    wait.trouble = trouble
    waits.looked(wait, None, 0.0, 0.0)

    assert [trouble] == told


def test_many_awaited_jobs_whose_polls_are_due_are_polled_in_chunks() -> None:
    """There are enough jobs for three chunks. A wait whose time is over ends with the poll of its own chunk."""
    waits = Waits()
    for n in range(2 * TOGETHER_MAX + 1):
        waits.add(JobWait("q", str(n), 9.0, lambda _: None), 0.0)

    assert [TOGETHER_MAX, TOGETHER_MAX, 1] == [len(waits.due(0.0)["q"]) for _ in range(3)]
    assert {} == waits.due(0.0)


def hearing(*ids: str) -> tuple[Waits, list[JobWait], object]:
    """Return the waits for these jobs and their subscription. The jobs were polled at time 0, and were alive."""
    waits, subscription = Waits(), object()
    for job_id in ids:
        waits.add(JobWait("q", job_id, 100.0, lambda _: None), 0.0)
    found = waits.due(0.0)["q"]
    for wait in found:
        waits.looked(wait, None, 0.0, 0.0, subscription)
    return waits, found, subscription


def test_an_awaited_job_is_polled_rarely_while_a_subscription_covers_its_queue() -> None:
    waits, (first, *_), subscription = hearing("a")
    times = []
    while (at := waits.next_at()) is not None and at < 90.0:
        times.append(at)
        waits.due(at)
        waits.looked(first, None, at, at, subscription)

    pauses = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert [*HEARD_S] == pytest.approx(pauses[: len(HEARD_S)], rel=0.11)
    assert {HEARD_S[-1]} == {round(pause, 6) for pause in pauses[len(HEARD_S) :]}


def test_waits_that_began_at_different_times_share_polls() -> None:
    waits, subscription = Waits(), object()
    for n in range(1_000):
        waits.add(JobWait("q", str(n), 1e6, lambda _: None), n / 100)
    looks = 0
    while (at := waits.next_at()) is not None and at < 60.0:
        for wait in waits.due(at)["q"]:
            looks += at > 20.0
            waits.looked(wait, None, at, at, subscription)
    calls, until = 0, 80.0
    while (at := waits.next_at()) is not None and at < until:
        calls += 1
        for wait in waits.due(at)["q"]:
            waits.looked(wait, None, at, at, subscription)

    assert looks >= 7_000
    assert calls <= 20 / (HEARD_S[-1] / GRAINS) + 1


def test_an_awaited_job_is_polled_at_once_when_a_message_names_the_job() -> None:
    waits, (a, b), _ = hearing("a", "b")
    waits.told("other", ["a"], 0.1)
    waits.told("q", ["b", "unknown"], 0.1)

    assert {"q": [b]} == waits.due(0.1)
    assert None is b.hearing
    assert None is not a.hearing


def test_all_jobs_of_a_queue_are_polled_if_the_listener_may_have_missed_messages() -> None:
    waits, found, _ = hearing("a", "b")
    waits.missed("other", 0.1)
    nothing = waits.due(0.1)
    waits.missed("q", 0.1)

    assert {} == nothing
    assert {"q": found} == waits.due(0.1)


def test_a_message_that_arrives_during_the_poll_of_its_job_is_not_lost() -> None:
    """The job ends after the server has answered the poll, and before the client has the answer."""
    waits, (wait,), subscription = hearing("a")
    waits.missed("q", 1.0)
    waits.due(1.0)
    waits.told("q", ["a"], 1.1)
    waits.looked(wait, None, 1.1, 1.0, subscription)

    assert 1.1 == waits.next_at()
    assert {"q": [wait]} == waits.due(1.1)


def test_the_queues_of_waits_that_have_ended_are_not_listed() -> None:
    waits, (a, b), subscription = hearing("a", "b")
    waits.looked(a, Gone("a"), 1.0, 1.0, subscription)
    one_left = waits.queues()
    b.over = True
    waits.due(100.0)

    assert {"q"} == one_left
    assert set() == waits.queues()
    assert [] == waits.all()
