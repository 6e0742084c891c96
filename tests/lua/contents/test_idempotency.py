"""Remembered ids. While an id is remembered, each repeated call gets the same job, even after the job has ended."""

import hashlib
import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from rq_core import errors
from rq_core.app.durable.children import NEVER
from rq_core.model.idempotency import read_result, result_line
from rq_core.model.job import NewJob, ties_with_unclaimed
from rq_core.model.result_encoding import pack_result
from tests.kit.consistency import assert_consistent
from tests.kit.seed import LEASE_MS, WORKER, Seed, events_of
from tests.lua.contents.entries import T, entry
from tests.lua.contents.test_names import (
    end_by_a_final_failure,
    end_by_a_turn,
    end_by_an_unknown_task,
    end_by_cancel,
    end_by_cancelling,
    end_by_cancelling_and_a_lost_lease,
    end_by_its_deadline,
    end_by_poison,
    end_by_success,
)

DAY = 86_400_000
CALL = "70c5d1ce0000000000000000000000ab"
OTHER = "0" * 32
DIGEST = "44136fa355b3678a1146ad16f7e8649e"  # of {}
LANES = pytest.mark.parametrize("lane", ["", "2+host=h"])


def enqueue(seed: Seed, *ids: str, call: str = CALL, remember_ms: int = DAY, **options: Any) -> Any:
    jobs = (seed.job(i, remember_ms=remember_ms, call=f"={call}", **options) for i in ids)
    return seed.enqueue(*jobs)


def result(seed: Seed, job_id: str) -> str | None:
    found = seed.snapshot()["results"].get(job_id)
    return None if found is None else str(found)


def test_enqueue_writes_the_end_of_a_remembered_id_into_the_state_line_the_event_and_the_key_results(
    seed: Seed,
) -> None:
    seed.client.run(seed.client.calls.delivery.handshake("q"))
    found = enqueue(seed, "a")
    (told,) = [e for e in seed.snapshot()["outbox"] if e[1]["type"] == "enqueued"]

    assert ("a",) == found.ids
    assert f"ready task=t once={T + DAY} call={CALL} seq=1 since={T}" == seed.state("a")
    assert told == entry(
        1,
        "enqueued",
        f'[["a",1,null,"t","normal",3,3,"{DIGEST}",null,null,null,null,{T + DAY},"{CALL}"]]',
        by="c-1",
    )
    (claim,) = seed.claim().jobs
    seed.advance(5)
    seed.complete(claim)
    after = seed.snapshot()

    line = f"succeeded at={T + 5} fence={claim.fence} once={T + DAY} call={CALL}"
    assert {"a": line} == after["results"]
    assert {"a": T + DAY} == after["kept"]
    assert str(len(line)) == after["meta"]["results_bytes"]
    assert line == result_line("succeeded", T + 5, T + DAY, fence=claim.fence, call=CALL)
    assert read_result("a", line)[1:] == (
        "succeeded", T + 5, claim.fence, T + DAY, CALL, None, None, None, None,
    )  # fmt: skip


@pytest.mark.parametrize("size", [1, 40], ids=["one job a call", "all jobs in one call"])
def test_each_job_with_a_remembered_id_gets_its_own_state_line_event_and_value(
    seed: Seed, size: int
) -> None:
    """Jobs of one call share all but ids, digests and arguments. Here they differ in everything that a job may have."""
    jobs: list[NewJob] = []
    expected: dict[str, str] = {}

    def add(job_id: str, call: str, head: str = "", ending: str = "", **options: Any) -> None:
        job = seed.job(job_id, remember_ms=DAY, call=f"={call}", **options)
        jobs.append(job)
        told = f" call={call}" if call else ""
        due = int(options.get("delay_ms", 0))
        place = f"due={T + due} " if due else f"seq={len(expected) - len(waiting) + 1}{ending} "
        if due:
            waiting.append(job_id)
        task = f"{'scheduled' if due else 'ready'} task={options.get('task', 't')}"
        expected[job_id] = f"{task}{head.format(once=f'once={T + DAY}{told}')} {place}since={T}"

    waiting: list[str] = []
    for n in range(3):
        add(f"a{n}", f"{n:032x}", " {once}", args_json=f'{{"n":{n}}}')
    add("uncalled", "", " {once}")
    add("kept", f"{3:032x}", f" {{once}} keep={DAY}", keep_ms=DAY)
    add("other", f"{4:032x}", " {once}", task="u", args_json=f'{{"n":"{"x" * 300}"}}')
    add("high", f"{5:032x}", " priority=high {once}", priority="high")
    add("lane", f"{6:032x}", " {once} lane=2+host=h", lane="2+host=h")
    add("until", f"{7:032x}", " {once}", f" expires={T + DAY}", expires_in_ms=DAY)
    add("named", f"{8:032x}", " unique=t/x {once}", unique="keep", name="t/x")
    add("later", f"{9:032x}", " {once}", delay_ms=5)
    for n in range(10, 13):
        add(f"a{n}", f"{n:032x}", f" {{once}} keep={DAY}", keep_ms=DAY)
    for first in range(0, len(jobs), size):
        part = jobs[first : first + size]
        assert seed.enqueue(*part).ids == tuple(job.id for job in part)
    after = seed.snapshot()

    assert expected == after["state"]
    specs = {job.id: (seed.control.hget(seed.keys("jobs"), job.id) or "")[:1] for job in jobs}
    assert set(specs.values()) == {"{"}
    told = [
        job
        for _, event in after["outbox"]
        if event["type"] == "enqueued"
        for job in json.loads(event["jobs"])
    ]
    assert [job[0] for job in told] == [job.id for job in jobs]
    traits = {
        job[0]: (job[7], *([*job[12:], None, None, None, None][at] for at in (0, 1, 3)))
        for job in told
    }
    for job in jobs:
        keep = DAY if " keep=" in expected[job.id] else None
        digest = hashlib.sha256(job.args_json.encode()).hexdigest()[:32]
        assert traits[job.id] == (digest, T + DAY, job.call.removeprefix("=") or None, keep)
    again = seed.enqueue(*jobs[:3], jobs[3], *jobs[10:])
    assert set(again.duplicates) == {job.id for job in (*jobs[:4], *jobs[10:])}


def test_the_state_line_of_each_claimed_job_has_the_digest_of_that_jobs_own_call(
    seed: Seed,
) -> None:
    ready: dict[str, str] = {}

    def add(job_id: str, call: str = "", **options: Any) -> None:
        assert enqueue(seed, job_id, call=call, **options).ids == (job_id,)
        ready[job_id] = seed.state(job_id) or ""

    for n in range(5):
        add(f"a{n}", f"{n:032x}")
    add("uncalled")
    add("other", f"{5:032x}", task="u")
    add("kept", f"{6:032x}", keep_ms=DAY)
    seed.enqueue("plain")
    for n in range(7, 10):
        add(f"a{n}", f"{n:032x}", keep_ms=DAY)
    add("until", f"{10:032x}", keep_ms=DAY, expires_in_ms=DAY)
    for n in range(11, 14):
        add(f"a{n}", f"{n:032x}", keep_ms=DAY)
    claims = seed.claim().jobs

    assert [claim.id for claim in claims] == [
        *(f"a{n}" for n in range(5)), "uncalled", "other", "kept", "plain",
        "a7", "a8", "a9", "until", "a11", "a12", "a13",
    ]  # fmt: skip
    for claim in claims:
        if claim.id != "plain":
            line, claimed = ready[claim.id], f" claim=1 fence={claim.fence} by={WORKER} seq="
            expected = line.replace("ready ", "running ").replace(" seq=", claimed)
            assert seed.state(claim.id) == expected


@pytest.mark.damaged
def test_a_field_that_a_client_hid_in_the_call_digest_of_a_state_line_is_still_read(
    seed: Seed,
) -> None:
    """The other jobs of the call have lines of the same form, which are not read field by field."""

    def hide(job_id: str, fields: str) -> None:
        assert len(fields) == len(CALL)
        line = (seed.state(job_id) or "").replace(f"{int(job_id[1:]):032x}", fields)
        seed.control.hset(seed.keys("state"), job_id, line)

    for n in range(6):
        enqueue(seed, f"a{n}", call=f"{n:032x}", keep_ms=DAY)
    hide("a3", "0 lost=2 unknown=1 failed=123456")
    claims = seed.claim().jobs
    assert [claim.failures for claim in claims] == [0, 0, 0, 123456, 0, 0]

    hide("a2", f"0 life={'f' * 16} x=012345")
    seed.complete(*claims, values={n: pack_result("1") for n in range(1, 7)})
    after = seed.snapshot()
    found = [re.findall(" call=(.*) task=", after["results"][f"a{n}"]) for n in range(6)]
    assert found == [["0" if n in (2, 3) else f"{n:032x}"] for n in range(6)]


def test_calls_carry_the_redis_keys_for_remembered_ids_only_if_the_queue_remembers_ids(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    heads = [seed.calls.delivery.head(name, "q") for name in ("enqueue", "claim", "turn")]
    assert not [key for head in heads for key in head if str(key).endswith((":results", ":kept"))]
    enqueue(seed, "b")
    heads = [seed.calls.delivery.head(name, "q") for name in ("enqueue", "claim", "turn")]

    expected = ("rqc:{q}:results", "rqc:{q}:kept", "rqc:{q}:returned")
    assert all(expected == head[-3:] for head in heads)


def test_a_call_that_lacks_needed_keys_is_sent_again_with_these_keys(
    seed: Seed, redis_url: str
) -> None:
    """The worker learns from the answer to its first claim that the queue remembers ids. It repeats the claim with the
    same number."""
    enqueue(seed, "a")
    with Seed(redis_url, name="c-2") as other:
        other.client.run(other.client.calls.delivery.handshake("q"))
        assert "rqc:{q}:results" not in other.calls.delivery.head("claim", "q")
        (claim,) = other.claim().jobs

    assert "a" == claim.id
    assert 1 == int(seed.snapshot()["slots"]["c-2.claim.1"].split(" ")[0])


@LANES
def test_a_remembered_id_makes_calls_duplicates_until_both_its_job_and_its_time_to_be_remembered_have_ended(
    seed: Seed, lane: str
) -> None:
    enqueue(seed, "a", lane=lane)
    for settle in (seed.fail, seed.rollback):
        (claim,) = seed.claim().jobs
        assert ("a",) == enqueue(seed, "a", lane=lane).duplicates
        settle(claim)
    seed.complete(*seed.claim().jobs)
    seed.advance(DAY - 1)
    assert {} == seed.changes(lambda: enqueue(seed, "a", lane=lane))
    assert ("a",) == enqueue(seed, "a", lane=lane).duplicates
    assert ("a",) == seed.enqueue("a").duplicates
    seed.advance(1)

    assert ("a",) == enqueue(seed, "a", lane=lane).ids
    assert 1 == seed.snapshot()["meta"]["results_bytes"].count("0")
    assert {} == seed.snapshot()["results"] == seed.snapshot()["kept"]


def test_an_id_makes_calls_duplicates_while_its_job_is_alive_though_its_time_to_be_remembered_has_ended(
    seed: Seed,
) -> None:
    enqueue(seed, "a", delay_ms=3 * DAY)
    seed.advance(2 * DAY)
    assert ("a",) == enqueue(seed, "a").duplicates
    seed.advance(DAY)
    (claim,) = seed.claim().jobs
    assert ("a",) == enqueue(seed, "a").duplicates
    seed.complete(claim)

    assert {} == seed.snapshot()["results"]
    assert ("a",) == enqueue(seed, "a").ids


ENDED: list[tuple[Callable[[Seed], None], str | None]] = [
    (end_by_success, "succeeded"),
    (end_by_a_turn, "succeeded"),
    (end_by_cancel, None),
    (end_by_cancelling, "cancelled"),
    (end_by_cancelling_and_a_lost_lease, "cancelled"),
    (end_by_its_deadline, None),
]


@LANES
@pytest.mark.parametrize(("end", "outcome"), ENDED, ids=lambda it: getattr(it, "__name__", it))
def test_each_end_of_a_claimed_job_writes_the_outcome_into_the_key_results(
    seed: Seed, end: Callable[[Seed], None], outcome: str | None, lane: str
) -> None:
    enqueue(seed, "a", lane=lane, expires_in_ms=DAY, remember_ms=3 * DAY)
    end(seed)
    line = result(seed, "a")

    assert outcome == (None if line is None else line.split(" ")[0])
    assert_consistent(seed.snapshot())
    assert (outcome is None) == bool(enqueue(seed, "a", lane=lane).ids)


DEATHS = [end_by_a_final_failure, end_by_an_unknown_task, end_by_poison]


@pytest.mark.parametrize("end", DEATHS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("swept", [False, True], ids=["pruned", "retired"])
def test_a_dead_job_is_remembered_as_dead_after_it_was_removed(
    seed: Seed, end: Callable[[Seed], None], swept: bool
) -> None:
    seed.configure(dead_retention_ms=DAY)
    enqueue(seed, "a", remember_ms=3 * DAY)
    end(seed)
    died = seed.now
    assert result(seed, "a") is None
    assert ("a",) == enqueue(seed, "a").duplicates
    if swept:
        seed.advance(DAY)
        seed.claim(0)
    else:
        seed.prune("a")

    assert f"dead at={died} once={T + 3 * DAY} call={CALL}" == result(seed, "a")
    assert ("a",) == enqueue(seed, "a").duplicates


def test_a_requeued_job_keeps_its_remembered_id(seed: Seed) -> None:
    enqueue(seed, "a")
    end_by_a_final_failure(seed)
    seed.requeue("a")
    assert ("a",) == enqueue(seed, "a").duplicates
    (claim,) = seed.claim().jobs
    seed.complete(claim)

    assert ("a",) == enqueue(seed, "a").duplicates
    assert f"succeeded at={T} fence={claim.fence}" in str(result(seed, "a"))


def test_the_id_of_a_job_that_is_cancelled_while_it_waits_for_a_retry_stays_remembered(
    seed: Seed,
) -> None:
    """The job has run once before, and may have had effects."""
    enqueue(seed, "a")
    seed.fail(*seed.claim().jobs, delay_ms=1_000)
    seed.cancel("a")

    assert f"cancelled at={T} once={T + DAY} call={CALL}" == result(seed, "a")
    assert ("a",) == enqueue(seed, "a").duplicates


def test_a_refused_settlement_writes_no_remembered_outcome(seed: Seed) -> None:
    enqueue(seed, "a")
    (claim,) = seed.claim().jobs
    seed.live(LEASE_MS)
    seed.claim(0)
    for settle in (seed.complete, seed.turn, seed.fail):
        settle(claim) if settle is not seed.turn else seed.turn(claim, limit=0)
        assert result(seed, "a") is None


@pytest.mark.parametrize("ended", [False, True])
def test_a_call_with_other_arguments_is_reported_as_a_mismatch(seed: Seed, *, ended: bool) -> None:
    enqueue(seed, "a")
    if ended:
        end_by_success(seed)

    assert {} == seed.changes(lambda: enqueue(seed, "a", call=OTHER))
    assert ("a",) == enqueue(seed, "a", call=OTHER).mismatched
    assert ("a",) == enqueue(seed, "a", call="").duplicates
    assert ("a",) == enqueue(seed, "a").duplicates


def test_two_jobs_with_one_id_in_a_call_are_compared_by_their_arguments(seed: Seed) -> None:
    jobs = [seed.job("a", remember_ms=DAY, call=f"={call}") for call in (CALL, CALL, OTHER)]
    found = seed.enqueue(*jobs)

    assert (("a",), ("a",)) == (found.duplicates, found.mismatched)


def test_the_id_of_a_job_that_is_rejected_for_its_unique_name_refers_to_the_holder_of_the_name(
    seed: Seed,
) -> None:
    """A repeated call with the id gets the answer of the first call, even if the holder of the name has ended.

    Example: a request with key K is answered with job A, which holds the unique name. Job A ends. The browser repeats
    the request, and is answered with job A again.
    """
    name = "t/tenant=acme"
    seed.enqueue("a", name=name)
    assert (("k", "a"),) == enqueue(seed, "k", name=name).held
    assert f"same job=a at={T} once={T + DAY} call={CALL}" == result(seed, "k")
    assert_consistent(seed.snapshot())
    end_by_success(seed)
    seed.advance(DAY - 1)
    found = enqueue(seed, "k", name=name)

    assert ((), (("k", "a"),)) == (found.ids, found.held)
    assert ("k",) == enqueue(seed, "k", name=name, call=OTHER).mismatched
    seed.advance(1)
    assert ("k",) == enqueue(seed, "k", name=name).ids


def test_a_call_that_unique_reject_refuses_leaves_no_remembered_id(seed: Seed) -> None:
    seed.enqueue("a", name="t/x")

    assert {} == seed.changes(lambda: enqueue(seed, "k", name="t/x", unique="reject"))


def test_two_rejected_jobs_with_one_id_in_a_call_are_answered_with_the_same_holder(
    seed: Seed,
) -> None:
    seed.enqueue("a", name="t/x")
    found = enqueue(seed, "k", "k", name="t/x")

    assert (("k", "a"), ("k", "a")) == found.held


def test_an_id_that_is_recorded_for_a_rejected_job_makes_later_jobs_of_the_call_duplicates(
    seed: Seed,
) -> None:
    """The later job has no unique name, and so is a duplicate only because of the recorded id."""
    seed.enqueue("a", name="t/x")
    first = seed.job("k", remember_ms=DAY, call=f"={CALL}", name="t/x")
    second, third = (seed.job("k", remember_ms=DAY, call=f"={c}") for c in (CALL, OTHER))
    found = seed.enqueue(first, second, third, seed.job("k"))

    assert ((), (("k", "a"),) * 3) == (found.ids, found.held)
    assert ("k",) == found.mismatched


def test_the_enqueued_event_of_a_call_without_a_digest_has_the_ends_of_the_remembered_id_and_of_the_throttle(
    seed: Seed,
) -> None:
    window = {"name": "t/x", "unique": "keep", "window_ms": 5_000, "remember_ms": DAY, "call": "="}
    seed.enqueue("a", **window)
    (told,) = [j.fields for e in seed.entries() for j in e.jobs]

    assert (T + DAY, None, f"until:{T + 5_000}") == (
        told["once_ms"],
        told["call_digest"],
        told["name_stands"],
    )


def test_a_replaced_id_refers_to_the_new_job(seed: Seed) -> None:
    enqueue(seed, "k", name="t/x")
    seed.enqueue("b", name="t/x", unique="replace")

    assert f"same job=b at={T} once={T + DAY} call={CALL}" == result(seed, "k")
    assert (("k", "b"),) == enqueue(seed, "k", name="t/x").held


def test_a_claim_forgets_expired_remembered_ids_and_reports_whether_more_expired_ids_are_left(
    seed: Seed,
) -> None:
    ids = [f"j{n}" for n in range(7)]
    enqueue(seed, *ids)
    seed.complete(*seed.claim().jobs)
    seed.advance(DAY)
    found = seed.claim(0, sweep_max=3)
    assert 4 == len(seed.snapshot()["results"])
    assert found.now_ms == found.next_due_ms
    assert_consistent(seed.snapshot())
    seed.claim(0, sweep_max=3)
    found = seed.claim(0, sweep_max=3)

    assert found.next_due_ms is None
    assert {} == seed.snapshot()["results"] == seed.snapshot()["kept"]
    assert "0" == seed.meta("results_bytes")


def test_an_id_is_not_forgotten_before_its_time_to_be_remembered_has_ended(seed: Seed) -> None:
    enqueue(seed, "a")
    end_by_success(seed)
    seed.advance(DAY - 1)
    seed.claim(0)

    assert ("a",) == enqueue(seed, "a").duplicates


@pytest.mark.parametrize("setting", ["results_max", "results_max_bytes"])
def test_new_jobs_with_remembered_ids_are_refused_when_the_key_results_is_full(
    seed: Seed, setting: str
) -> None:
    enqueue(seed, "a", "b")
    seed.complete(*seed.claim().jobs)
    seed.configure(**{setting: 2 if setting == "results_max" else 800})

    def refused() -> None:
        with pytest.raises(errors.ResultsFull) as caught:
            enqueue(seed, "c", "a")
        assert (2, setting) == (caught.value.kept, caught.value.setting)

    assert {} == seed.changes(refused)
    assert ("a", "b") == enqueue(seed, "a", "b").duplicates
    assert ("d",) == seed.enqueue("d").ids
    seed.advance(DAY)
    seed.claim(0)
    assert ("c",) == enqueue(seed, "c").ids


def test_an_id_with_a_stored_result_that_is_not_a_remembered_id_can_be_enqueued_again(
    seed: Seed,
) -> None:
    enqueue(seed, "x")
    seed.control.hset(seed.keys("results"), "a", f"succeeded at={T} until={T + DAY}\n42")
    seed.control.zadd(seed.keys("kept"), {"a": T + DAY})

    assert ("a",) == seed.enqueue("a").ids
    assert {} == seed.snapshot()["results"]


@pytest.mark.damaged
def test_a_baseline_has_the_remembered_ids_of_live_jobs(seed: Seed) -> None:
    enqueue(seed, "a")
    seed.running("b", remember_ms=DAY, call="=", name="t/x")
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
    seed.attach()
    told = {j.job_id: j.fields for e in seed.entries() if e.event == "baseline" for j in e.jobs}

    facts = {i: (f["unique_name"], f["once_ms"], f["call_digest"]) for i, f in told.items()}
    assert {"a": (None, T + DAY, CALL), "b": ("t/x", T + DAY, None)} == facts


@pytest.mark.damaged
def test_ids_are_still_remembered_after_the_key_meta_was_lost(seed: Seed) -> None:
    """Checks the ids of an ended job and of a live job. `meta` is deleted by hand."""
    enqueue(seed, "a", "b")
    seed.complete(*seed.claim(1).jobs)
    seed.control.delete(seed.keys("meta"))

    assert ("a", "b") == enqueue(seed, "a", "b").duplicates
    seed.complete(*seed.claim().jobs)
    assert {"a", "b"} == seed.snapshot()["results"].keys()


def test_a_restore_respects_remembered_ids(
    seed: Seed,
) -> None:
    """A restored job keeps its remembered id. A lost job is not restored if Redis remembers its id."""
    once = {"once_ms": T + DAY, "call_digest": CALL}
    assert {"a": "restored"} == seed.restore(seed.lost("a", **once))
    assert f"once={T + DAY} call={CALL}" in str(seed.state("a"))
    end_by_success(seed)

    assert {"a": "remembered"} == seed.restore(seed.lost("a", **once))
    assert seed.state("a") is None
    assert ["restored", "claimed", "succeeded"] == events_of(seed.entries(), "a")


class Model:
    """A model of remembered ids, written from the documentation and not from the scripts."""

    def __init__(self) -> None:
        self.alive: dict[str, tuple[int, bool]] = {}
        """For each id of a live job: the time until which the id is remembered, and whether the job was ever
        claimed."""
        self.over: dict[str, int] = {}
        """For each id of an ended job: the time until which a new call with the id is a duplicate."""

    def takes(self, job_id: str, now: int) -> bool:
        return job_id not in self.alive and self.over.get(job_id, 0) <= now

    def end(self, job_id: str) -> None:
        until, claimed = self.alive.pop(job_id)
        self.over[job_id] = until if claimed else 0


@pytest.mark.parametrize("number", range(20))
@pytest.mark.slow
def test_random_histories_of_remembered_ids_agree_with_the_model(seed: Seed, number: int) -> None:
    dice, model = random.Random(number), Model()
    ids = [f"k{n}" for n in range(5)]
    seed.configure(dead_retention_ms=400)

    def claim() -> None:
        for held in seed.claim(2).jobs:
            model.alive[held.id] = model.alive[held.id][0], True
            match dice.choice(("complete", "turn", "retry", "die", "give back")):
                case "complete":
                    seed.complete(held)
                    model.end(held.id)
                case "turn":
                    seed.turn(held, limit=0)
                    model.end(held.id)
                case "retry":
                    outcome = seed.fail(held, delay_ms=dice.choice((0, 50)))
                    assert outcome[held.id] in ("ready", "scheduled", "dead")
                case "die":
                    seed.fail(held, verdict="final")
                case _:
                    seed.rollback(held)

    for _ in range(120):
        job_id = dice.choice(ids)
        match dice.choice(("enqueue", "enqueue", "claim", "cancel", "requeue", "prune", "time")):
            case "enqueue":
                window = dice.choice((1, 200, 1_000))
                takes = model.takes(job_id, seed.now)
                delay = dice.choice((0, 0, 300))
                found = enqueue(seed, job_id, remember_ms=window, delay_ms=delay)
                assert takes == bool(found.ids), job_id
                assert takes != bool(found.duplicates), job_id
                if takes:
                    model.alive[job_id] = seed.now + window, False
            case "claim":
                claim()
            case "cancel":
                if seed.cancel(job_id)[job_id] == "cancelled":
                    model.end(job_id)
            case "requeue":
                seed.requeue(job_id)
            case "prune":
                if seed.prune(job_id)[job_id] == "pruned":
                    model.end(job_id)
            case _:
                seed.advance(dice.choice((1, 60, 500)))
                # A claim may remove what was dead for too long.
                seed.claim(0)
                for gone in model.alive.keys() - seed.snapshot()["jobs"].keys():
                    model.end(gone)
        assert_consistent(seed.snapshot())


@LANES
def test_a_job_that_may_never_wait_is_rejected_unless_its_id_is_known(
    seed: Seed, lane: str
) -> None:
    """A parent that runs again sends its children with the rule ``rq_core.app.durable.children.NEVER``. A known child
    is a duplicate, and an unknown child is rejected."""
    enqueue(seed, "known", lane=lane)
    found: list[Any] = []

    changed = seed.changes(
        lambda: found.append(enqueue(seed, "known", "new", lane=lane, full=NEVER))
    )
    other = enqueue(seed, "known", call=OTHER, lane=lane, full=NEVER)

    assert {} == changed
    assert (("known",), ["new"]) == (found[0].duplicates, [i for i, _ in found[0].rejected])
    assert ("known",) == other.mismatched


def end_overdue(seed: Seed) -> None:
    seed.advance(1_000)


def end_expired(seed: Seed) -> None:
    seed.advance(1_000)
    seed.claim(0)


@pytest.mark.parametrize("end", [end_by_cancel, end_expired, end_overdue])
def test_the_id_of_a_job_that_was_never_claimed_is_a_duplicate_only_if_the_call_asks_for_it(
    seed: Seed, end: Callable[[Seed], None]
) -> None:
    """Children of durable jobs are enqueued so. The bound is the end of the time for which the outcome is kept."""
    plain = seed.job("a", remember_ms=2_000, keep_ms=2_000, expires_in_ms=1_000, call=f"={CALL}")
    job = plain._replace(ties=ties_with_unclaimed(plain.ties))
    assert ("a",) == seed.enqueue(job).ids
    end(seed)

    found: list[Any] = []
    changed = seed.changes(lambda: found.append(seed.enqueue(job, job)))
    assert ({}, (), ("a", "a")) == (changed, found[0].ids, found[0].duplicates)
    assert ("a",) == seed.enqueue(plain).ids
    seed.cancel("a")
    seed.advance(2_000)
    assert ("a",) == seed.enqueue(job).ids
    assert_consistent(seed.snapshot())
