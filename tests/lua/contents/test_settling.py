"""The keys in Redis after the calls complete and fail, and after an operator's commands."""

import pytest

from tests.kit.seed import ERROR, LEASE_MS, NO_FENCE, Seed, spec
from tests.lua.contents.entries import T, entry


def test_the_script_complete_removes_a_job_and_logs_its_success(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.complete(claim))

    assert changes == {
        "jobs": {"a": (f"task=t priority=critical seq=1 since={T}\n{spec()}", None)},
        "state": {"a": (f"running task=t priority=critical claim=1 fence={T}-2 by=w-1 seq=1 since={T}", None)},
        "leases": {"a": (T + float(LEASE_MS), None)},
        "outbox": [entry(3, "succeeded", f'[["a","{T}-2"]]')],
    }  # fmt: skip


def test_the_script_fail_answers_for_each_job_separately_and_logs_refusals(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")
    a, b, c = seed.claim().jobs
    seed.cancel("b")
    seed.complete(c)

    outcomes = seed.fail(a, b, c, ("nobody", NO_FENCE), a, delay_ms=500)

    # By id the last word counts; a worker names each job once.
    assert outcomes == {"a": "gone", "b": "cancelled", "c": "gone", "nobody": "gone"}
    kinds = [(str(e.event), [j.job_id for j in e.jobs]) for e in seed.entries()[-3:]]
    assert kinds == [
        ("retried", ["a"]),
        ("cancelled", ["b"]),
        ("settlement_refused", ["c", "nobody", "a"]),
    ]


def test_the_script_fail_schedules_a_retry_and_logs_the_error(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.fail(claim, delay_ms=2_000))

    assert changes == {
        "state": {
            "a": (
                f"running task=t priority=critical claim=1 fence={T}-2 by=w-1 seq=1 since={T}",
                f"scheduled task=t priority=critical claim=1 failed=1 seq=1 due={T + 2_000} since={T}",
            )
        },
        "leases": {"a": (T + float(LEASE_MS), None)},
        "scheduled": {"job|a": (None, T + 2_000.0)},
        "outbox": [entry(3, "retried", f'[["a","{T}-2",{T + 2_000},1,{ERROR}]]')],
    }


def test_a_job_is_dead_after_its_last_attempt(seed: Seed) -> None:
    seed.enqueue("a", attempts=3)
    outcomes = [seed.fail(seed.claim_one("a"))["a"] for _ in range(3)]

    assert outcomes == ["ready", "ready", "dead"]
    line = f"dead task=t claim=3 failed=3 seq=1 since={T} reason=attempts_spent"
    assert line == seed.state("a")


def test_a_final_failure_makes_the_job_dead_with_its_reason(seed: Seed) -> None:
    claim = seed.running("a")
    changes = seed.changes(lambda: seed.fail(claim, verdict="final", reason="gave_up"))

    assert changes["dead"] == {"a": (None, float(T))}
    assert changes["expiring"] == {"dead|a": (None, T + 30 * 86_400_000.0)}
    assert changes["outbox"] == [entry(3, "died", f'[["a","{T}-2","gave_up",1,{ERROR}]]')]


def test_requeue_resets_the_failures_of_a_job_but_continues_to_count_its_claims(
    seed: Seed,
) -> None:
    seed.dead("a")
    seed.take_token()

    changes = seed.changes(lambda: seed.requeue("a"))

    assert changes["state"]["a"][1] == f"ready task=t priority=critical claim=1 seq=2 since={T}"
    assert changes["meta"] == {"sequence": ("1", "2")}
    assert changes["ready:0"] == ([], ["a"])
    assert changes["wake"] == ([], ["1"])
    assert seed.claim_one("a").number == 2


def test_a_cancel_does_not_change_a_job_whose_claim_has_ended_meanwhile(seed: Seed) -> None:
    seed.running("runs")
    seed.fail(seed.running("runs-again"))
    seed.claim_one("runs-again")
    seed.fail(seed.running("ran"))
    seed.enqueue("waits")

    ids, admin = ["waits", "runs", "ran", "runs-again"], seed.client.calls.admin
    first = seed.client.run(admin.cancel("q", ids, ended=dict.fromkeys(ids, 0)))
    again = seed.client.run(admin.cancel("q", ids, ended=dict.fromkeys(ids, 1)))

    assert ["cancelled", "cancelling", "moved", "moved"] == [first[each] for each in ids]
    assert ["gone", "moved", "cancelled", "cancelling"] == [again[each] for each in ids]


@pytest.mark.parametrize("verb", ["cancel", "requeue", "prune"])
def test_a_job_that_a_call_names_twice_gets_the_outcome_of_its_first_record(
    seed: Seed, verb: str
) -> None:
    """The second record would have another outcome if it were carried out."""
    if verb == "cancel":
        seed.enqueue("a")
    else:
        seed.dead("a")

    outcome = getattr(seed, verb)("a", "a")

    assert {"a": {"cancel": "cancelled", "requeue": "requeued", "prune": "pruned"}[verb]} == outcome


def test_the_event_of_an_operators_call_names_the_operator_and_the_reason(seed: Seed) -> None:
    seed.enqueue("a")
    seed.client.run(
        seed.client.calls.admin.cancel("q", ["a"], by="ann", why='"no" longer: needed ü')
    )
    seed.client.run(seed.client.calls.admin.configure("q", {"paused": 1}, by="bob", why="upgrade"))

    last, paused = seed.entries()[-2:]
    assert ("cancelled", "ann", '"no" longer: needed ü') == (last.event, last.by, last.why)
    assert ("paused", "bob", "upgrade") == (paused.event, paused.by, paused.why)
