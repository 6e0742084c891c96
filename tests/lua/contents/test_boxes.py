"""The keys in Redis after a durable job has saved steps, and after the job has ended."""

import json

import pytest

from rq_core.model.job import Claim
from rq_core.model.result_encoding import pack_result
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.boxes import NotSaved, Saving, save
from tests.kit.seed import LEASE_MS, LIFE, NO_FENCE, QUEUE, WORKER, Seed
from tests.lua.contents.entries import T, entry

VALUE = '{"id":1}'
DIGEST = digest_of(VALUE)


def test_the_first_saved_step_of_a_job_creates_the_store_of_the_jobs_steps(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.save(claim))

    line = f"running task=t priority=critical claim=1 fence={T}-2 by=w-1 seq=1 since={T}"
    assert changes == {
        "meta": {"durable": (None, "1")},
        "state": {"a": (line, line.replace(" claim=", f" life={LIFE} claim="))},
        "boxes": {
            LIFE: (None, "job=a entries=1 bytes=8"),
            f"{LIFE}|1": (None, f"charge saved at={T} fence={T}-2 digest={DIGEST}\n{VALUE}"),
        },
        "outbox": [entry(3, "step_saved", f'[["a","{T}-2","{LIFE}",1,"charge",8,"{DIGEST}"]]')],
    }


def test_a_begun_step_has_the_same_number_after_it_is_saved(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim, what="begin")
    seed.save(claim, entry=2, name="other")

    changes = seed.changes(lambda: seed.save(claim))

    assert changes == {
        "boxes": {
            LIFE: ("job=a entries=2 bytes=8", "job=a entries=2 bytes=16"),
            f"{LIFE}|1": (
                f"charge begun at={T} fence={T}-2",
                f"charge saved at={T} fence={T}-2 digest={DIGEST}\n{VALUE}",
            ),
        },
        "outbox": [entry(5, "step_saved", f'[["a","{T}-2","{LIFE}",1,"charge",8,"{DIGEST}"]]')],
    }


def test_a_saved_step_is_not_saved_again(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)

    assert {} == seed.changes(lambda: seed.save(claim))
    assert {} == seed.changes(lambda: seed.save(claim, what="begin"))


def test_only_the_worker_that_holds_the_claim_can_save_a_step(seed: Seed) -> None:
    claim = seed.running("a")
    seed.enqueue("waits")

    for held, worker, why in (
        ((claim.id, NO_FENCE), WORKER, "stale"),
        ((claim.id, claim.fence), "w-2", "stale"),
        (("waits", claim.fence), WORKER, "stale"),
        (("nobody", claim.fence), WORKER, "gone"),
    ):
        before = seed.snapshot()
        assert {0: NotSaved(why, None)} == seed.save(held, worker=worker)
        assert (before["state"], {}) == (seed.snapshot()["state"], seed.snapshot()["boxes"])
        assert before["outbox"] == seed.snapshot()["outbox"]


def test_a_step_is_not_saved_if_redis_lacks_steps_before_it(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)

    assert {0: NotSaved("behind", 1)} == seed.save(claim, entry=3)


def test_a_step_is_refused_if_its_number_has_another_name_or_its_job_has_another_id_for_its_steps(
    seed: Seed,
) -> None:
    a, b = seed.running("a"), seed.running("b")
    seed.save(a)

    assert {0: NotSaved("conflict", 1)} == seed.save(a, name="charged")
    assert {0: NotSaved("other", None)} == seed.save(a, entry=2, life="0" * 16)
    assert {1: NotSaved("conflict", None)} == seed.save(a, b)


def test_a_job_whose_store_of_steps_is_full_can_save_no_further_step(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)
    seed.control.hset(seed.keys("boxes"), LIFE, "job=a entries=10000 bytes=8")

    assert {0: NotSaved("full", 10_000)} == seed.save(claim, entry=10_001)

    seed.control.hset(seed.keys("boxes"), LIFE, f"job=a entries=1 bytes={16 * 1024 * 1024 - 7}")
    assert {0: NotSaved("full", 1)} == seed.save(claim, entry=2)
    assert {} == seed.save(claim, entry=2, value="!too_large")
    seed.control.hset(seed.keys("boxes"), LIFE, "job=a entries=2 bytes=8")


def test_steps_that_are_saved_in_one_call_are_stored_like_steps_saved_one_by_one(
    seed: Seed,
) -> None:
    """Most entries of a call are the results of children: each has the form of the one before it. Here every form of
    record comes between such entries."""
    seed.enqueue("a", "b", "c")
    a, b, c = seed.claim().jobs
    lives = {"a": "a" * 16, "b": "b" * 16, "c": "c" * 16}

    def records(of: Claim) -> list[Saving]:
        def entry_of(number: int, packed: str, what: str = "save", about: str = "") -> Saving:
            name = f"parts={number}"
            return Saving(of.id, of.fence, lives[of.id], what, number, name, packed, about)

        values = {n: pack_result(f'"{"ü" * n}"') for n in range(1, 22)}
        values |= {6: "!too_large", 10: pack_result("[1]", "full"), 14: "!not_json"}
        found = [entry_of(n, packed) for n, packed in values.items()]
        found.insert(20, entry_of(22, "", "wait"))  # behind: it is carried out by no call
        found.insert(17, found[8])  # saved by this call already
        found.insert(16, entry_of(30, pack_result("1")))  # behind
        found.insert(12, found[11]._replace(name="other"))  # conflict
        found.insert(4, found[4]._replace(fence=NO_FENCE))  # stale
        begun, later = entry_of(22, "", "begin"), entry_of(23, pack_result("23"))
        return [*found, begun, found[-1], later, entry_of(22, pack_result("22"))]

    # A record of another box and one of another job have the number that is the next one of the job's box.
    of_a = records(a)
    other_box, other_job = of_a[8]._replace(life=lives["c"]), of_a[9]._replace(id=c.id)
    together = [*of_a[:8], other_box, of_a[8], other_job, *of_a[9:]]
    first = len(seed.snapshot()["outbox"])
    refused = seed.client.run(save(QUEUE, WORKER, together))
    middle = len(seed.snapshot()["outbox"])
    alone = {}
    for n, record in enumerate(records(b)):
        if found := seed.client.run(save(QUEUE, WORKER, [record])):
            alone[n] = found[0]
    after = seed.snapshot()

    assert [refused.pop(8).why, refused.pop(10).why] == ["behind", "conflict"]
    assert {n - (n > 8) - (n > 10): each for n, each in refused.items()} == alone
    assert {each.why for each in alone.values()} == {"behind", "conflict", "stale"}

    def box(job_id: str) -> dict[str, str]:
        life = lives[job_id]
        found = {k: v for k, v in after["boxes"].items() if k.startswith(life)}
        return {
            k.removeprefix(life): v.replace(f"job={job_id} ", "job= ") for k, v in found.items()
        }

    assert box("a") == box("b")
    assert len(box("a")) == 24
    told = [
        (event["type"], *job)
        for _, event in after["outbox"]
        if event["type"].startswith("step_")
        for job in json.loads(event["jobs"])
    ]
    by_job = {i: [(type_, *rest) for type_, job, _, _, *rest in told if job == i] for i in "ab"}
    assert by_job["a"] == by_job["b"]
    assert len(by_job["a"]) == 24
    assert middle - first == 3  # saved, begun, saved


def test_a_saved_step_without_a_value_has_the_reason_why_the_value_is_missing(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.save(claim, value="!too_large"))

    assert f"charge saved at={T} fence={T}-2 digest=too_large" == changes["boxes"][f"{LIFE}|1"][1]
    assert changes["outbox"] == [
        entry(3, "step_saved", f'[["a","{T}-2","{LIFE}",1,"charge",null,"too_large"]]')
    ]


def test_steps_of_several_jobs_are_saved_in_one_call_and_logged_in_order(seed: Seed) -> None:
    a, b = seed.running("a"), seed.running("b")
    other = LIFE[::-1]
    records = [
        Saving(a.id, a.fence, LIFE, "begin", 1, "one"),
        Saving(a.id, a.fence, LIFE, "save", 2, "two", "!not_json"),
        Saving(b.id, b.fence, other, "save", 1, "one", "!not_json"),
        Saving(a.id, a.fence, LIFE, "save", 1, "one", "!not_json"),
    ]

    assert {} == seed.client.run(save(QUEUE, WORKER, records))

    told = [
        (str(e.event), [(j.job_id, j.fields["entry"]) for j in e.jobs]) for e in seed.entries()[-2:]
    ]
    assert told == [("step_begun", [("a", 1)]), ("step_saved", [("a", 2), ("b", 1), ("a", 1)])]


def test_the_log_has_the_value_of_a_step_if_the_job_requests_it(seed: Seed) -> None:
    seed.attach()
    claim = seed.running("a")

    seed.save(claim, kept="full")

    assert VALUE == seed.entries()[-1].jobs[0].fields["value"]


def test_the_next_claim_of_the_queue_deletes_the_saved_steps_of_a_job_that_has_ended(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    seed.save(claim)

    changes = seed.changes(lambda: seed.complete(claim))
    assert changes["expiring"] == {f"box|{LIFE}": (None, float(T))}
    assert "boxes" not in changes

    seed.advance(LEASE_MS)
    seed.claim()
    found = seed.snapshot()
    assert {} == found["boxes"]
    assert f"box|{LIFE}" not in found["expiring"]


def test_many_saved_steps_of_an_ended_job_are_deleted_by_several_claims(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)
    fields = {f"{LIFE}|{n}": f"s{n} begun at=1 fence=1-1" for n in range(2, 2_501)}
    seed.control.hset(seed.keys("boxes"), mapping={**fields, LIFE: "job=a entries=2500 bytes=8"})
    seed.complete(claim)

    sizes = []
    for _ in range(3):
        seed.advance(LEASE_MS)
        seed.claim()
        sizes.append(len(seed.snapshot()["boxes"]))

    assert [1_501, 501, 0] == sizes


def test_a_dead_job_keeps_its_saved_steps_until_it_is_pruned(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)
    seed.fail(claim, verdict="final")
    seed.requeue("a")
    again = seed.claim_one("a")

    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", again.fence, WORKER))
    assert box is not None
    assert [("charge", VALUE)] == [(each.name, each.value) for each in box.entries]

    seed.fail(again, verdict="final")
    seed.prune("a")
    assert f"box|{LIFE}" in seed.snapshot()["expiring"]


def test_only_the_worker_that_holds_the_claim_can_read_the_saved_steps(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)
    read = seed.client.calls.reads.box

    assert seed.client.run(read(QUEUE, "a", claim.fence, WORKER)) is not None
    assert seed.client.run(read(QUEUE, "a", NO_FENCE, WORKER)) is None
    assert seed.client.run(read(QUEUE, "a", claim.fence, "w-2")) is None


@pytest.mark.parametrize("size", [0, 3_000], ids=["small", "with pages that are cut"])
def test_saved_steps_are_read_in_pages(seed: Seed, size: int) -> None:
    claim = seed.running("a")
    seed.save(claim)
    fields = {f"{LIFE}|{n}": f"s{n} begun at=1 fence=1-1" for n in range(2, 2_601)}
    for n in range(500, 1_500):
        fields[f"{LIFE}|{n}"] = f"s{n} saved at=1 fence=1-1 digest=d\n{'x' * size}"
    seed.control.hset(
        seed.keys("boxes"), mapping={**fields, LIFE: f"job=a entries=2600 bytes={8 + 1_000 * size}"}
    )

    box = seed.client.run(seed.client.calls.reads.box(QUEUE, "a", claim.fence, WORKER))

    assert box is not None
    assert ["charge", *(f"s{n}" for n in range(2, 2_601))] == [each.name for each in box.entries]


def test_once_a_step_is_saved_earlier_failures_do_not_count_towards_max_attempts(
    seed: Seed,
) -> None:
    """The job has max_attempts=3. It dies of the third failure after its last saved step."""
    for failures in range(2):
        claim = seed.running("a") if not failures else seed.claim_one("a")
        seed.fail(claim, verdict="retry")
    claim = seed.claim_one("a")
    seed.save(claim)

    assert " failed=2 base=2/0 " in seed.state("a")
    assert "2/0" == seed.entries()[-1].jobs[0].fields["base"]
    outcomes = [seed.fail(claim, verdict="retry")]
    for _ in range(2):
        claim = seed.claim_one("a")
        assert (2, 0) == claim.base
        outcomes.append(seed.fail(claim, verdict="retry"))

    assert [{"a": "ready"}, {"a": "ready"}, {"a": "dead"}] == outcomes
    seed.assert_consistent()


def test_only_a_newly_saved_step_stops_earlier_failures_from_counting(seed: Seed) -> None:
    claim = seed.running("a")
    seed.save(claim)
    seed.fail(claim, verdict="retry")
    claim = seed.claim_one("a")

    seed.save(claim)
    seed.save(claim, what="begin", entry=2, name="receipt")
    assert " base=" not in seed.state("a")

    seed.save(claim, entry=2, name="receipt")
    assert " base=1/0 " in seed.state("a")


def test_once_a_step_is_saved_earlier_losses_of_workers_do_not_count_towards_max_losses(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    states = []
    for losses in range(5):
        if losses == 2:
            seed.save(claim)
        seed.live(LEASE_MS + 1)
        states.append(seed.claim().jobs)
        if states[-1]:
            (claim,) = states[-1]

    assert [1, 2, 3, 4, 0] == [claims[0].losses if claims else 0 for claims in states]
    assert seed.state("a").startswith("dead ")
    assert " lost=5 base=2/0" not in seed.state("a")
    assert " lost=5 base=0/2 " in seed.state("a")
    seed.assert_consistent()


def test_a_job_that_saves_a_step_before_each_failure_dies_in_the_end(seed: Seed) -> None:
    """The job has max_attempts=3, and dies of its thirtieth failure."""
    claim = seed.running("a")
    outcomes = []
    for number in range(1, 31):
        seed.save(claim, entry=number, name=f"s{number}")
        outcomes.append(*seed.fail(claim, verdict="retry").values())
        if outcomes[-1] == "ready":
            claim = seed.claim_one("a")

    assert ["ready"] * 29 + ["dead"] == outcomes


def test_a_requeued_job_counts_its_failures_from_zero_again(seed: Seed) -> None:
    claim = seed.running("a")
    seed.fail(claim, verdict="retry")
    claim = seed.claim_one("a")
    seed.save(claim)
    seed.fail(claim, verdict="final")

    seed.requeue("a")

    line = seed.state("a")
    assert " base=" not in line
    assert " failed=" not in line
    assert f" life={LIFE} " in line
