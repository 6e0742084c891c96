"""Verify and parked jobs (I21 to I23): true logs are accepted, and each planted lie is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from rq_core.model.events import OutboxId
from sql_audit.proof.epoch_starts import EpochStart
from sql_audit.proof.replay.replay import Replay
from tests.audit.test_saved_steps import LIFE, D, E, running, save, told
from tests.kit.story import MemoryWriter

UNTIL = 9_000_000_000_000
Lie = Callable[[MemoryWriter, str], Any]


def begin(
    log: MemoryWriter,
    fence: str,
    entry: int,
    name: str,
    kind: str | None,
    until: int | None = None,
) -> None:
    log.jobs("step_begun", ["a", fence, LIFE, entry, name, kind, until], by="w-1")


def send(
    log: MemoryWriter, number: int, name: str = "ok", key: str | None = None, d: str = D
) -> None:
    log.jobs("signalled", ["a", LIFE, number, name, key, 8, d], by="ann")


def take(log: MemoryWriter, fence: str, entry: int, name: str, message: int, d: str = D) -> None:
    log.jobs("step_saved", ["a", fence, LIFE, entry, name, 8, d, None, None, message], by="w-1")


def over(log: MemoryWriter, fence: str, entry: int, name: str) -> None:
    log.jobs("step_saved", ["a", fence, LIFE, entry, name, None, "over"], by="w-1")


def park(log: MemoryWriter, fence: str, waits: str, due: int | None = None) -> None:
    log.jobs("parked", ["a", fence, due, waits], by="w-1")


def wake(log: MemoryWriter, cause: int | None = None, by: str = "ann") -> None:
    log.jobs("woken", ["a", cause], by=by)


def parked(log: MemoryWriter) -> str:
    """Park a job that waits for the signal `ok`, with a timeout, and sleeps. Return the fence of its claim."""
    fence = running(log)
    save(log, fence, 1, "charge")
    begin(log, fence, 2, "ok", "wait", UNTIL)
    begin(log, fence, 3, "nap", "sleep", UNTIL + 5)
    park(log, fence, "2,3", UNTIL)
    return fence


def test_replay_accepts_a_job_that_is_parked_and_woken_in_a_true_log() -> None:
    log = MemoryWriter()
    parked(log)
    send(log, 1, "other")
    send(log, 2, key="k")
    wake(log, 2)
    fence = log.jobs("claimed", ["a", 2])
    take(log, fence, 2, "ok", 2)
    # A failover took it, and the worker sends it again.
    log.begin(log.now_ms + 1, "replid_changed", f"{log.epoch}-{log.seq}")
    take(log, fence, 2, "ok", 2)
    park(log, fence, "3", UNTIL + 5)
    log.jobs("expired", ["a", 1])

    assert [] == [each for each in told(log) if each[0] != "I19"]


def moved(log: MemoryWriter, by: str = "w-1", *, is_lost: bool = True) -> str:
    """Send a signal to a running job whose box Redis has lost. The signal begins a box, which the worker ``by`` moves.

    Return the fence of the claim. If ``is_lost`` is false, nothing was lost.
    """
    fence = running(log)
    if is_lost:
        log.begin(log.now_ms + 1, "replid_changed", fence)
    log.jobs("signalled", ["a", "0" * 16, 1, "ok", None, 8, E], by="ann")
    log.jobs("signalled", ["a", LIFE, 1, "ok", None, 8, E], by=by)
    return fence


def test_replay_accepts_that_signals_which_arrived_after_a_loss_get_the_id_of_the_lost_steps() -> (
    None
):
    log = MemoryWriter()
    fence = moved(log)
    save(log, fence, 1, "charge")
    take(log, fence, 2, "ok", 1, E)
    take(log, fence, 3, "ok#2", 2)
    log.jobs("succeeded", ["a", fence])

    assert [] == told(log)


@pytest.mark.parametrize(("by", "is_lost"), [("w-2", True), ("w-1", False)])
def test_replay_reports_a_changed_id_of_the_steps_of_a_job_if_no_loss_explains_the_change(
    by: str, *, is_lost: bool
) -> None:
    log = MemoryWriter()
    moved(log, by, is_lost=is_lost)

    assert [("I21", f"is in box {LIFE}, the job's is {'0' * 16}")] == told(log)


def test_replay_accepts_a_wait_that_is_saved_again_though_a_new_signal_has_the_number_of_its_signal() -> (
    None
):
    log = MemoryWriter()
    fence = running(log)
    log.begin(log.now_ms + 1, "replid_changed", fence)
    begin(log, fence, 1, "no", "wait")
    send(log, 1)
    take(log, fence, 2, "ok#2", 1, E)
    take(log, fence, 3, "ok", 1)

    assert [] == told(log)


def put_back_from(log: MemoryWriter, numbers: Iterable[int]) -> str:
    """Let a worker whose claim is older than the epoch save again waits that had taken these signals.

    Return the fence of the claim.
    """
    fence = running(log)
    log.begin(log.now_ms + 1, "replid_changed", fence)
    for entry, number in enumerate(numbers, 1):
        take(log, fence, entry, f"w{entry}", number)
    return fence


def test_replay_accepts_waits_that_were_saved_again_out_of_the_order_of_their_signals() -> None:
    log = MemoryWriter()
    put_back_from(log, [4, 1, 3])
    send(log, 5)

    assert [] == told(log)


def test_replay_accepts_that_a_job_parks_for_a_wait_that_its_worker_saved_again_as_over() -> None:
    """A failover took the wait before its job parked, and the worker saved it again."""
    log = MemoryWriter()
    fence = running(log)
    log.begin(log.now_ms + 1, "replid_changed", fence)
    over(log, fence, 1, "ok")
    park(log, fence, "1")
    wake(log, by="w-1")

    assert [] == told(log)


def test_replay_accepts_a_park_for_a_wait_that_a_restore_has_put_back() -> None:
    """Redis forgot the event of the wait, and a restore put the wait into the box. The next claim parks for it."""
    log = MemoryWriter()
    fence = running(log)
    save(log, fence, 1, "charge")
    known = OutboxId(log.epoch, log.seq)
    begin(log, fence, 2, "ok", "wait", UNTIL)
    log.begin(log.epoch + 1000, "replid_changed", str(known))
    log.jobs("lease_expired", ["a", fence, "w-1", 1, "ready"], by="w-2")
    park(log, log.jobs("claimed", ["a", 2]), "2", UNTIL)
    beginnings = [
        EpochStart(known.epoch, "created", None),
        EpochStart(log.epoch, "replid_changed", known),
    ]

    replay = Replay("mail", beginnings=beginnings)
    replay.feed(log.rows)

    assert [] == replay.violations


def test_replay_reports_that_two_waits_which_were_saved_again_have_taken_the_same_signal() -> None:
    log = MemoryWriter()
    put_back_from(log, [3, 1, 1])

    assert [("I21", "takes signal 1, which does not wait")] == told(log)


def test_replay_reports_that_a_later_claim_takes_a_signal_which_a_failover_lost() -> None:
    log = MemoryWriter()
    log.jobs("retried", ["a", put_back_from(log, [3]), None, 1, None])
    take(log, log.jobs("claimed", ["a", 2]), 2, "w2", 1)

    assert ("I21", "takes signal 1, which does not wait") in told(log)


def first_signal_again(log: MemoryWriter, _: str) -> None:
    send(log, 1)
    wake(log, 2)
    send(log, 1)


def left_out(log: MemoryWriter, _: str) -> None:
    send(log, 2)
    wake(log, 2)


def same_key(log: MemoryWriter, _: str) -> None:
    send(log, 1, "other", "k")
    send(log, 2, "other", "k", E)


def same_key_taken_twice(log: MemoryWriter, _: str) -> None:
    send(log, 1, key="k")
    wake(log, 2)
    send(log, 2, key="k")
    fence = log.jobs("claimed", ["a", 2])
    take(log, fence, 2, "ok", 1)
    take(log, fence, 4, "ok#2", 2)


def sent_again_after_its_take(log: MemoryWriter, _: str) -> None:
    send(log, 1, key="k")
    wake(log, 2)
    take(log, log.jobs("claimed", ["a", 2]), 2, "ok", 1)
    send(log, 2, key="k")


def woken_early(log: MemoryWriter, _: str) -> None:
    wake(log, by="w-2")


def woken_by_its_timeout_for_a_reason(log: MemoryWriter, _: str) -> None:
    log.now_ms = UNTIL
    log.jobs("woken", ["a", None], by="w-2", why="because")


def woken_for_nothing(log: MemoryWriter, _: str) -> None:
    send(log, 1, "other")
    wake(log, 2)


def woken_for_another_entry(log: MemoryWriter, _: str) -> None:
    wake(log, 1)


def not_woken(log: MemoryWriter, _: str) -> None:
    send(log, 1)
    log.jobs("cancelled", ["a"], by="ann")


def claimed_while_parked(log: MemoryWriter, _: str) -> None:
    log.jobs("claimed", ["a", 2])


def _again(log: MemoryWriter) -> str:
    send(log, 1)
    send(log, 2, d=E)
    wake(log, 2)
    return log.jobs("claimed", ["a", 2])


def taken_out_of_order(log: MemoryWriter, _: str) -> None:
    take(log, _again(log), 2, "ok", 2, E)


def taken_twice(log: MemoryWriter, _: str) -> None:
    fence = _again(log)
    take(log, fence, 2, "ok", 1)
    take(log, fence, 4, "ok#2", 1)


def taken_with_another_value(log: MemoryWriter, _: str) -> None:
    take(log, _again(log), 2, "ok", 1, E)


def over_with_a_signal(log: MemoryWriter, _: str) -> None:
    over(log, _again(log), 2, "ok")


def over_before_its_moment(log: MemoryWriter, _: str) -> None:
    over(log, _again(log), 3, "nap")


def saved_without_a_signal(log: MemoryWriter, _: str) -> None:
    save(log, _again(log), 2, "ok")


def parked_for_a_step(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "1")


def parked_for_no_entry(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "9", UNTIL)


def parked_for_no_entry_beside_its_own(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "3,9", UNTIL)


def parked_until_another_moment(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "3", UNTIL)


def woken_out_of_a_sleep_by_a_signal(log: MemoryWriter, _: str) -> None:
    send(log, 1, "nap")
    wake(log, 3)


def taken_by_a_sleep(log: MemoryWriter, _: str) -> None:
    fence = _again(log)
    send(log, 3, "nap")
    take(log, fence, 3, "nap", 3)


def sleeps_without_end(log: MemoryWriter, _: str) -> None:
    begin(log, _again(log), 4, "rest", "sleep")


def begins_a_step_until_a_moment(log: MemoryWriter, _: str) -> None:
    begin(log, _again(log), 4, "rest", None, UNTIL)


def parked_for_a_number_with_a_zero(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "03", UNTIL + 5)


def parked_for_one_entry_twice(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "3,3", UNTIL + 5)


def parked_for_a_letter(log: MemoryWriter, _: str) -> None:
    park(log, _again(log), "3,x", UNTIL + 5)


def waits_beside_its_signal(log: MemoryWriter, _: str) -> None:
    begin(log, _again(log), 4, "ok#2", "wait")


def sent_twice_with_one_key(log: MemoryWriter, _: str) -> None:
    send(log, 1, "other", "k")
    send(log, 2, "other", "k")


def sent_with_an_empty_key(log: MemoryWriter, _: str) -> None:
    send(log, 1, key="")


def sent_with_a_digest_that_is_none(log: MemoryWriter, _: str) -> None:
    send(log, 1, d="ABC")


def left_parked_by_its_signal(log: MemoryWriter, _: str) -> None:
    send(log, 1)
    log.queue_event("paused")


def left_parked_beside_its_signal(log: MemoryWriter, fence: str) -> None:
    wake(log)
    fence = log.jobs("claimed", ["a", 2])
    send(log, 1)
    park(log, fence, "2,3", UNTIL)
    log.queue_event("paused")


def woken_by_another_operator(log: MemoryWriter, _: str) -> None:
    send(log, 1)
    log.now_ms -= 1
    wake(log, 2, by="bob")


def parked_with_a_reason(log: MemoryWriter, _: str) -> None:
    log.jobs("parked", ["a", _again(log), UNTIL + 5, "3"], by="w-1", why="checked")


def step_that_ends_as_a_wait(log: MemoryWriter, _: str) -> None:
    fence = _again(log)
    begin(log, fence, 4, "receipt", None)
    over(log, fence, 4, "receipt")


def step_without_a_value_that_has_bytes(log: MemoryWriter, _: str) -> None:
    row = ["a", _again(log), LIFE, 4, "receipt", 8, "too_large"]
    log.jobs("step_saved", row, by="w-1")


@pytest.mark.parametrize(
    ("lie", "found"),
    [
        (first_signal_again, ("I21", "is signal 1, the one before was 1")),
        (left_out, ("I21", "is signal 2, the one before was 0")),
        (same_key, ("I21", "is sent with the key k, which came before")),
        (same_key_taken_twice, ("I21", "is signal 2, the one before was 1")),
        (sent_again_after_its_take, ("I21", "is sent with the key k, which came before")),
        (woken_early, ("I23", "is woken without a signal at")),
        (
            woken_by_its_timeout_for_a_reason,
            ("I23", "is woken without a signal, and for a reason: because"),
        ),
        (woken_for_nothing, ("I23", "is woken for entry 2, and no signal ok waits")),
        (woken_for_another_entry, ("I23", "is woken for entry 1, for which the job does not wait")),
        (
            not_woken,
            ("I23", "happens to a job that is parked, although what it waits for has come"),
        ),
        (claimed_while_parked, ("I6", "parked -claimed-> is not a transition")),
        (taken_out_of_order, ("I21", "takes signal 2, and signal 1 came before")),
        (taken_twice, ("I21", "takes signal 1, which does not wait")),
        (taken_with_another_value, ("I21", f"takes signal 1 with digest {E}, which was {D}")),
        (over_with_a_signal, ("I21", "is over, and signal 1 waits")),
        (over_before_its_moment, ("I22", f"is over, and waits until {UNTIL + 5}")),
        (saved_without_a_signal, ("I21", "is saved without a signal, and waits as ok")),
        (parked_for_a_step, ("I22", "waits for entry 1, which is no wait or is over")),
        (parked_for_no_entry, ("I22", "waits for entry 9, which is no wait or is over")),
        (
            parked_for_no_entry_beside_its_own,
            ("I22", "waits for entry 9, which is no wait or is over"),
        ),
        (parked_until_another_moment, ("I22", f"is due at {UNTIL}, and waits until {UNTIL + 5}")),
        (
            woken_out_of_a_sleep_by_a_signal,
            ("I23", "is woken for entry 3, for which the job does not wait"),
        ),
        (taken_by_a_sleep, ("I21", "takes signal 3, and is a sleep")),
        (sleeps_without_end, ("I22", "sleeps without end")),
        (begins_a_step_until_a_moment, ("I22", f"is a step, and waits until {UNTIL}")),
        (
            parked_for_a_number_with_a_zero,
            ("I22", "waits for '03', and these are not the numbers of different entries, in order"),
        ),
        (
            parked_for_one_entry_twice,
            (
                "I22",
                "waits for '3,3', and these are not the numbers of different entries, in order",
            ),
        ),
        (
            parked_for_a_letter,
            (
                "I22",
                "waits for '3,x', and these are not the numbers of different entries, in order",
            ),
        ),
        (waits_beside_its_signal, ("I21", "waits, and signal 1 has come")),
        (sent_twice_with_one_key, ("I21", "is signal 2, the one before was 1")),
        (sent_with_an_empty_key, ("I21", "has the key '', and no signal can have this key")),
        (
            sent_with_a_digest_that_is_none,
            ("I21", "has digest 'ABC', and no value has such a digest"),
        ),
        (
            left_parked_by_its_signal,
            ("I23", "leaves its job parked, although what the job waits for has come"),
        ),
        (
            left_parked_beside_its_signal,
            ("I23", "leaves its job parked, although what the job waits for has come"),
        ),
        (
            woken_by_another_operator,
            ("I23", "is woken by bob, and it could go on since a call of ann"),
        ),
        (parked_with_a_reason, ("I6", "says why, which is no field of such an event")),
        (
            step_that_ends_as_a_wait,
            ("I20", "ends as a wait or a sleep does, and was begun as a step"),
        ),
        (
            step_without_a_value_that_has_bytes,
            ("I20", "has digest too_large, and a number of bytes"),
        ),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_replay_finds_each_lie_about_a_parked_job(lie: Lie, found: tuple[str, str]) -> None:
    log = MemoryWriter()
    lie(log, parked(log))

    assert any(invariant == found[0] and found[1] in says for invariant, says in told(log)), told(
        log
    )
