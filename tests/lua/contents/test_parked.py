"""The keys in Redis after a durable job has slept, waited or parked, and after signals were sent to it."""

from typing import Any, Literal

import pytest

from rq_core.model.durable.boxes import NOTHING_KNOWN, KnownBox
from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import NotSaved, Saving, Sent, look_again, refusals, save
from tests.kit.seed import LEASE_MS, LIFE, NO_FENCE, QUEUE, WORKER, Seed
from tests.lua.contents.entries import T, entry

LINE = f"parked task=t priority=critical life={LIFE} claim=1 seq=1"


def test_a_sleep_begins_once_and_ends_at_its_time(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.wait(claim, "+5000", what="sleep", name="nap"))

    assert changes["boxes"] == {
        LIFE: (None, "job=a entries=1 bytes=0"),
        f"{LIFE}|1": (None, f"nap sleeps at={T} fence={T}-2 until={T + 5_000}"),
    }
    assert changes["outbox"] == [
        entry(3, "step_begun", f'[["a","{T}-2","{LIFE}",1,"nap","sleep",{T + 5_000}]]')
    ]
    seed.live(2_000)
    # The worker may say anything about the moment now: it is fixed.
    again = seed.wait(claim, "+5000", what="sleep", name="nap")
    assert {0: NotSaved("waits", T + 5_000)} == again
    seed.live(3_000)

    changes = seed.changes(lambda: seed.wait(claim, "+5000", what="sleep", name="nap"))

    assert changes["boxes"] == {
        f"{LIFE}|1": (
            f"nap sleeps at={T} fence={T}-2 until={T + 5_000}",
            f"nap saved at={T + 5_000} fence={T}-2 digest=over",
        )
    }
    assert {} == seed.wait(claim, what="sleep", name="nap")


def test_a_parked_job_has_no_lease_and_is_woken_when_its_sleep_ends(seed: Seed) -> None:
    claim = seed.running("a")
    seed.wait(claim, "+5000", what="sleep", name="nap")

    changes = seed.changes(lambda: seed.park(claim))

    parked = f"{LINE} waits=1 due={T + 5_000} since={T}"
    running = (
        f"running task=t priority=critical life={LIFE} claim=1 fence={T}-2 by=w-1 seq=1 since={T}"
    )
    assert changes["state"] == {"a": (running, parked)}
    assert changes["parked"] == {"a": (None, float(T))}
    assert changes["scheduled"] == {"job|a": (None, float(T + 5_000))}
    assert list(changes["leases"].items()) == [("a", (float(T + LEASE_MS), None))]
    assert changes["outbox"] == [entry(4, "parked", f'[["a","{T}-2",{T + 5_000},"1"]]')]

    seed.advance(5_000)
    changes = seed.changes(lambda: seed.claim(0))

    assert changes["outbox"] == [entry(5, "woken", '[["a",null]]', at=T + 5_000)]
    assert changes["parked"] == {"a": (float(T), None)}
    assert changes["ready:0"] == ([], ["a"])
    assert f"ready {LINE.partition(' ')[2]} since={T + 5_000}" == changes["state"]["a"][1]


def test_a_signal_wakes_its_waiting_job_and_the_wait_takes_its_value(seed: Seed) -> None:
    claim = seed.running("a")
    assert {0: NotSaved("waits", None)} == seed.wait(claim)
    seed.park(claim)

    assert [Sent("sent", 1)] == seed.signal("a", name="refusal")
    assert [Sent("woken", 2)] == seed.signal("a", value='{"ok": true}', key="w-9", value_max=100)
    assert [Sent("known", 2)] == seed.signal("a", value="{}", key="w-9")

    again = seed.claim_one("a")
    before = seed.snapshot()["boxes"]
    assert before[f"{LIFE}>approval"] == "2"
    assert {} == seed.wait(again)
    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", again.fence, WORKER))
    assert box is not None
    (taken,) = box.entries
    assert (taken.name, taken.value, taken.message) == ("approval", '{"ok": true}', 2)
    after = seed.snapshot()["boxes"]
    digest = digest_of('{"ok": true}')
    assert after[f"{LIFE}>2"] == f"approval at={T} digest={digest} key=w-9"
    assert f"{LIFE}>approval" not in after
    assert after[LIFE] == "job=a entries=1 bytes=14 mail=2"
    assert {} == seed.wait(again)
    assert [Sent("known", 2)] == seed.signal("a", value="{}", key="w-9")
    assert {0: NotSaved("waits", None)} == seed.wait(again, name="approval#2", entry=2)


def test_signals_with_the_same_name_are_taken_in_order(seed: Seed) -> None:
    seed.enqueue("a")
    for number in range(3):
        seed.signal("a", value=str(number))
    claim = seed.claim_one("a")
    life = seed.state("a").split("life=")[1].split()[0]  # type: ignore[union-attr]

    for number, name in enumerate(("approval", "approval#2", "approval#3"), 1):
        assert {} == seed.wait(claim, name=name, entry=number, life=life)

    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", claim.fence, WORKER))
    assert box is not None
    assert ["0", "1", "2"] == [each.value for each in box.entries]


def test_a_wait_takes_a_signal_that_has_arrived_even_if_the_timeout_of_the_wait_has_passed(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.wait(claim, "+1000")
    seed.signal("a", value="7")
    seed.live(2_000)

    assert {} == seed.wait(claim)

    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", claim.fence, WORKER))
    assert box is not None
    assert "7" == box.entries[0].value


def test_a_job_that_parks_after_its_signal_came_is_woken_at_once(seed: Seed) -> None:
    claim = seed.running("a")
    seed.wait(claim, "+1000")
    seed.signal("a")

    assert {"a": "ready"} == seed.park(claim)
    assert ["parked", "woken"] == [str(e.event) for e in seed.entries()[-2:]]


@pytest.mark.parametrize(
    ("waits", "life", "knows"),
    [("2", LIFE, ""), ("1", LIFE, "2"), ("1", LIFE, "1,2+"), ("1", "f" * 16, "")],
    ids=["its wait", "another entry", "a saved entry", "its box"],
)
def test_a_job_does_not_park_if_redis_lacks_steps_that_its_worker_has_saved(
    seed: Seed, waits: str, life: str, knows: str
) -> None:
    claim = seed.running("a")
    seed.wait(claim)

    changes = seed.changes(lambda: seed.park(claim, waits=waits, life=life, knows=knows))

    assert {} == {key: each for key, each in changes.items() if key != "slots"}
    assert {"a": "behind"} == seed.park(claim, waits=waits, life=life, knows=knows)
    assert {"a": "parked"} == seed.park(claim)


def test_a_job_does_not_park_if_redis_has_a_step_only_as_begun_though_its_worker_has_saved_it(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.save(claim, what="begin")
    seed.wait(claim, entry=2)

    assert {"a": "behind"} == seed.park(claim, waits="2", knows="1+")
    seed.save(claim)
    assert {"a": "parked"} == seed.park(claim, waits="2", knows="1+")


def test_other_jobs_park_though_redis_lacks_the_saved_steps_of_one_job_in_the_call(
    seed: Seed,
) -> None:
    """Checks a job in a lane: its place in the cap stays taken, and the other job's place is free."""
    seed.cap("host", 1)
    held = [seed.running(name, scopes=[f"host={name}"]) for name in ("a", "b")]
    lives = [LIFE, "1" * 16]
    for claim, life in zip(held, lives, strict=True):
        seed.wait(claim, life=life)
    seed.control.hdel(seed.keys("boxes"), f"{LIFE}|1")
    seed.control.hset(seed.keys("boxes"), LIFE, "job=a entries=0 bytes=0")

    assert {"a": "behind", "b": "parked"} == seed.park(*held)

    holders = seed.snapshot()["holders"]
    assert ["host=a|a"] == [name for name in holders if name.startswith("host")]
    assert ["a"] == list(seed.snapshot()["leases"])


def test_a_cancelled_job_ends_when_it_parks_although_redis_lacks_its_saved_steps(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.cancel("a")

    assert {"a": "cancelled"} == seed.park(claim)


@pytest.mark.parametrize("end", ["fail", "rollback"])
@pytest.mark.parametrize("lost", ["an entry", "the box", "the fact"])
def test_a_failure_or_rollback_does_not_end_a_claim_while_redis_lacks_the_saved_steps_of_its_job(
    seed: Seed, end: str, lost: str
) -> None:
    """``the fact`` is a replica that had received nothing of any box, so that the queue is not durable there."""
    claim, other = seed.running("a"), seed.running("b")
    records: dict[str, Any] = {
        "fail": [(c.id, c.fence, "retry", 0, "failed", "null") for c in (claim, other)],
        "rollback": [(c.id, c.fence, "shutdown", "null", "", 0) for c in (claim, other)],
    }
    call = getattr(claims, end)(
        seed.queue, WORKER, records[end], [KnownBox(LIFE, "1+"), NOTHING_KNOWN]
    )
    line = seed.control.hget(seed.keys("state"), "a")
    seed.save(claim)
    if lost == "an entry":
        seed.control.hdel(seed.keys("boxes"), f"{LIFE}|1")
    else:
        seed.control.delete(seed.keys("boxes"))
        seed.control.hset(seed.keys("state"), "a", line)
    if lost == "the fact":
        seed.control.hdel(seed.keys("meta"), "durable")
    lacking = seed.snapshot()["state"]["a"]

    assert {"a": "behind", "b": "ready"} == seed.client.run(call)
    assert (lacking, ["a"]) == (seed.snapshot()["state"]["a"], list(seed.snapshot()["leases"]))

    if lost == "an entry":
        seed.control.delete(seed.keys("boxes"))
        seed.control.hset(seed.keys("state"), "a", line)
    seed.save(claim)
    assert {"a": "ready", "b": "stale"} == seed.client.run(call)


def test_a_sleeping_job_is_not_woken_by_a_signal(seed: Seed) -> None:
    seed.parked("a", "+5000", what="sleep")

    assert [Sent("sent", 1)] == seed.signal("a")
    assert {} == {c.id: c.fence for c in seed.claim(5).jobs}


def test_a_parked_job_holds_no_place_in_its_caps(
    seed: Seed,
) -> None:
    """A woken job waits for a place."""
    seed.cap("host", 1)
    seed.parked("a", scopes=["host=x"])
    seed.enqueue(seed.job("b", scopes=["host=x"]))

    other = seed.claim_one("b")
    assert [Sent("woken", 1)] == seed.signal("a")
    assert () == seed.claim(5).jobs
    seed.complete(other)

    assert ["a"] == [each.id for each in seed.claim(5).jobs]


def test_a_signal_that_wakes_a_job_removes_the_timeout_of_the_jobs_wait_from_the_index(
    seed: Seed,
) -> None:
    seed.parked("a", "+5000")

    changes = seed.changes(lambda: seed.signal("a"))

    assert changes["scheduled"] == {"job|a": (float(T + 5_000), None)}
    assert changes["parked"] == {"a": (float(T), None)}


def test_a_save_is_refused_with_the_reason_other_if_a_signal_has_begun_the_store_of_steps_under_another_id(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    seed.signal("a")
    claim = seed.claim_one("a")

    assert {0: NotSaved("other", None)} == seed.save(claim)


def test_a_wait_takes_its_signal_again_after_a_failover_brought_the_signal_back(seed: Seed) -> None:
    claim = seed.running("a")
    seed.wait(claim)
    seed.signal("a", value="7")
    before = seed.control.hgetall(seed.keys("boxes"))
    seed.wait(claim)
    seed.control.delete(seed.keys("boxes"))
    seed.control.hset(seed.keys("boxes"), mapping=before)

    assert {} == seed.wait(claim, "1", what="take", value=pack_result("7"))

    boxes = seed.snapshot()["boxes"]
    assert f"{LIFE}>approval" not in boxes
    assert boxes[LIFE] == "job=a entries=1 bytes=1 mail=1"


def test_two_waits_in_one_call_take_their_signals_again_after_a_failover_brought_the_signals_back(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    for value in ("7", "8"):
        seed.signal("a", value=value)
    life = box_of(seed)
    before = seed.control.hgetall(seed.keys("boxes"))
    seed.wait(claim, life=life)
    seed.wait(claim, life=life, entry=2, name="approval#2")
    seed.control.delete(seed.keys("boxes"))
    seed.control.hset(seed.keys("boxes"), mapping=before)

    takes = [
        Saving("a", claim.fence, life, "take", number, name, pack_result(value), str(number))
        for number, name, value in ((1, "approval", "7"), (2, "approval#2", "8"))
    ]
    assert {} == refusals(seed.client.run(save(QUEUE, WORKER, takes)))

    assert f"{life}>approval" not in seed.snapshot()["boxes"]


def box_of(seed: Seed, job_id: str = "a") -> str:
    """Return the id of the box that the job's state line names."""
    line = seed.snapshot()["state"][job_id]
    return str(line.partition(" life=")[2].partition(" ")[0])


def test_after_redis_lost_the_steps_of_a_job_its_worker_can_give_newer_signals_the_id_of_the_lost_steps(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.signal("a", key="k", value="7")
    seed.signal("a", name="refusal")
    seed.signal("a", value="8")
    old, before = box_of(seed), seed.snapshot()["boxes"]
    seed.advance(5)

    changes = seed.changes(lambda: seed.save(claim, what="move", entry=0, name=""))

    moved = {name: (text, None) for name, text in before.items()}
    moved |= {
        name.replace(old, LIFE): (None, text.replace(f" at={T}", f" at={T + 5}"))
        for name, text in before.items()
    }
    assert changes["boxes"] == moved
    line = f"running task=t priority=critical life={old} claim=1 fence={T}-2 by=w-1 seq=1 since={T}"
    assert changes["state"] == {"a": (line, line.replace(old, LIFE))}
    signals = [(1, "approval", '"k"', 1, "7"), (2, "refusal", "null", 2, "{}")]
    said = [
        f'["a","{LIFE}",{number},"{name}",{key},{size},"{digest_of(value)}"]'
        for number, name, key, size, value in [*signals, (3, "approval", "null", 1, "8")]
    ]
    (at, told) = entry(6, "signalled", f"[{','.join(said)}]", at=T + 5)
    assert changes["outbox"] == [(at, {**told, "why": "the box of the claim was lost"})]

    assert {} == seed.save(claim)
    assert [Sent("known", 1)] == seed.signal("a", key="k", value="7")
    assert {} == seed.wait(claim, entry=2)
    assert {} == seed.wait(claim, entry=3, name="approval#2")
    entries = [seed.snapshot()["boxes"][f"{LIFE}|{number}"] for number in (2, 3)]
    assert ["7", "8"] == [text.partition("\n")[2] for text in entries]


def test_only_the_worker_that_holds_the_claim_can_change_the_id_of_stored_signals_and_only_to_an_unused_id(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.signal("a")
    seed.control.hset(seed.keys("boxes"), "0" * 16, "job=b entries=1 bytes=0")
    before = seed.snapshot()["boxes"]

    for held, worker, life, why in (
        (("a", NO_FENCE), WORKER, LIFE, "stale"),
        (("a", claim.fence), "w-2", LIFE, "stale"),
        (("nobody", claim.fence), WORKER, LIFE, "gone"),
        (("a", claim.fence), WORKER, "0" * 16, "other"),
    ):
        refused = seed.save(held, worker=worker, what="move", entry=0, name="", life=life)
        assert {0: NotSaved(why, None)} == refused
    assert before == seed.snapshot()["boxes"]
    seed.control.hdel(seed.keys("boxes"), "0" * 16)


def test_the_id_of_stored_signals_cannot_change_if_the_job_has_saved_steps_or_over_1000_signals(
    seed: Seed,
) -> None:
    claim, crowded = seed.running("a"), seed.running("b")
    seed.save(claim)
    seed.signal("b")
    header, other = "job=b entries=0 bytes=2 mail=", "1" * 16
    boxes = seed.keys("boxes")
    seed.control.hset(boxes, box_of(seed, "b"), header + "1001")
    before = seed.snapshot()["boxes"]

    refused = {0: NotSaved("other", None)}
    for held in (claim, crowded):
        assert refused == seed.save(held, what="move", entry=0, name="", life=other)
    assert before == seed.snapshot()["boxes"]
    seed.control.hset(boxes, box_of(seed, "b"), header + "1")
    assert {} == seed.save(claim, what="move", entry=0, name=""), "it has this id already"


@pytest.mark.parametrize(
    ("name", "value"), [("approval", "8"), ("refusal", "7")], ids=["value", "name"]
)
def test_saving_a_lost_wait_again_does_not_take_a_new_signal_that_has_the_number_of_the_old_signal(
    seed: Seed, name: str, value: str
) -> None:
    """Redis forgot signal 1 and the wait that took it. A new signal then got number 1. The worker saves the lost wait
    again, and this must not take the new signal."""
    claim = seed.running("a")
    seed.wait(claim, name=name, entry=1)
    seed.signal("a", name=name, value=value)

    packed = pack_result("7")
    assert {} == seed.wait(claim, "1", what="take", name="approval#2", entry=2, value=packed)

    boxes = seed.snapshot()["boxes"]
    assert ("1", value) == (boxes[f"{LIFE}>{name}"], boxes[f"{LIFE}>1"].partition("\n")[2])
    assert boxes[LIFE] == "job=a entries=2 bytes=2 mail=1"
    assert {} == seed.wait(claim, name=name)
    assert value == seed.snapshot()["boxes"][f"{LIFE}|1"].partition("\n")[2]


def test_the_signals_of_a_job_are_removed_with_its_saved_steps(seed: Seed) -> None:
    claim = seed.running("a")
    seed.wait(claim)
    seed.signal("a", key="k")
    seed.signal("a", name="refusal")
    seed.complete(claim)

    seed.advance(LEASE_MS)
    seed.claim()

    assert {} == seed.snapshot()["boxes"]


def test_a_signal_is_refused_if_the_store_of_the_jobs_steps_and_signals_is_full(seed: Seed) -> None:
    claim = seed.running("a")
    seed.wait(claim)
    full = {LIFE: "job=a entries=1 bytes=0 mail=10000", f"{LIFE}>10000": "refusal"}
    seed.control.hset(seed.keys("boxes"), mapping=full)
    assert [Sent("full", None)] == seed.signal("a")
    seed.control.hset(seed.keys("boxes"), LIFE, f"job=a entries=1 bytes={16 * 1024 * 1024 - 1}")

    assert [Sent("full", None)] == seed.signal("a")
    assert [Sent("gone", None)] == seed.signal("b")
    seed.control.hset(seed.keys("boxes"), LIFE, "job=a entries=1 bytes=0")


@pytest.mark.damaged
def test_a_signal_to_a_job_whose_saved_steps_redis_has_lost_is_refused(seed: Seed) -> None:
    """The signal must not begin a new box, since `audit restore` would then not put back the lost one."""
    seed.parked("a")
    seed.control.delete(seed.keys("boxes"))

    assert [Sent("lost", None)] == seed.signal("a")
    assert not seed.control.exists(seed.keys("boxes"))
    assert [Sent("waits", None)] == seed.client.run(look_again(QUEUE, ["a"], by="ada"))


@pytest.mark.damaged
@pytest.mark.parametrize("missing", ["|1", ">1"])
def test_a_signal_is_refused_if_redis_lacks_the_last_saved_step_or_the_last_signal_of_the_job(
    seed: Seed, missing: str
) -> None:
    """A restore has put back only a part of the box. A signal would change the header, and the box would stay
    incomplete."""
    seed.parked("a")
    assert [Sent("sent", 1)] == seed.signal("a", name="refusal")
    seed.control.hdel(seed.keys("boxes"), "0" * 14 + "61" + missing)
    before = seed.snapshot()["boxes"]

    assert [Sent("lost", None)] == seed.signal("a")
    assert before == seed.snapshot()["boxes"]


def test_a_check_of_parked_jobs_wakes_only_a_job_whose_signal_has_arrived(seed: Seed) -> None:
    life = "0" * 14 + "61"
    for job_id, what in (("a", "wait"), ("b", "sleep")):
        seed.parked(job_id, "+5000", what=what)
    seed.enqueue("c")
    look = look_again(QUEUE, ["a", "b", "c", "d"], by="ada", why="broken")
    outcomes = ["waits", "waits", "waits", "gone"]
    assert outcomes == [each.outcome for each in seed.client.run(look)]
    more = {
        life: f"{seed.snapshot()['boxes'][life]} mail=1",
        f"{life}>1": f"approval at={T} digest=\n",
        f"{life}>approval": "1",
    }
    seed.control.hset(seed.keys("boxes"), mapping=more)

    changes = seed.changes(lambda: seed.client.run(look))

    (woken,) = changes["outbox"]
    assert ("woken", '[["a",1]]', "ada", "broken") == tuple(
        woken[1][name] for name in ("type", "jobs", "by", "why")
    )
    assert changes["scheduled"] == {"job|a": (float(T + 5_000), None)}
    assert {"a"} == changes["state"].keys() == changes["parked"].keys()


def test_the_answer_to_a_wait_contains_the_value_that_the_wait_took_unless_the_value_is_large(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.save(claim)
    seed.signal("a", value="[1]")
    seed.signal("a", name="large", value=f'"{"x" * 4_096}"')
    kinds: tuple[tuple[Literal["wait", "sleep"], str, str], ...] = (
        ("wait", "approval", ""),
        ("wait", "large", ""),
        ("sleep", "nap", "+0"),
        ("wait", "later", "+5000"),
    )
    records = [
        Saving("a", claim.fence, LIFE, what, number, name, "", about)
        for number, (what, name, about) in enumerate(kinds, 2)
    ]

    first = seed.client.run(save(QUEUE, WORKER, records))
    again = seed.client.run(save(QUEUE, WORKER, records))

    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", claim.fence, WORKER))
    assert box is not None
    _, taken, large, over, _ = box.entries
    assert ("[1]", 4_098, "over") == (taken.value, len(large.value or ""), over.note)
    assert {0: taken, 2: over, 3: NotSaved("waits", T + 5_000)} == first == again
