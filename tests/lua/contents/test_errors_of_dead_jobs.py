"""The error of a dead job. Redis keeps its type and message until the job leaves Redis."""

import json

import pytest

from rq_core.app.handlers.redaction import describe_error
from rq_core.model.job import Claim, error_of, place_in, spec_of
from rq_core.protocol.calls import claims
from tests.kit.seed import ERROR, Seed, spec
from tests.lua.contents.entries import T


def fail(seed: Seed, claim: Claim, error: str, verdict: str = "final") -> str:
    records = [(claim.id, claim.fence, verdict, 0, "gave_up", error)]
    return seed.client.run(claims.fail(seed.queue, "w-1", records))[claim.id]


def value(seed: Seed, job_id: str = "a") -> str:
    return str(seed.control.hget(seed.keys("jobs"), job_id))


def test_in_the_key_jobs_the_value_of_a_dead_job_begins_with_the_error(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.fail(claim, verdict="final"))

    waited = f"task=t priority=critical seq=1 since={T}\n{spec()}"
    assert changes["jobs"] == {"a": (waited, f"error={ERROR}\n{spec()}")}


def test_a_retried_failure_stores_no_error_with_the_job(seed: Seed) -> None:
    claim = seed.running("a")

    changes = seed.changes(lambda: seed.fail(claim))

    assert "jobs" not in changes


def test_a_dead_job_stores_only_a_short_traceback_of_its_error(seed: Seed) -> None:
    """If the JSON of an error is too long, the script looks for its field ``traceback``. The error's message looks like
    this field."""
    message = 'no ", "traceback": "such\n thing'
    with pytest.raises(KeyError) as raised:
        {}[message]
    said = describe_error(raised.value)

    assert fail(seed, seed.running("a"), said) == "dead"

    kept = error_of(value(seed))
    assert kept is not None
    assert kept == ("KeyError", repr(message), json.loads(said)["traceback"])
    assert place_in(kept.traceback).startswith("contents/test_errors_of_dead_jobs.py:")

    long = said.replace("Traceback", "T" * 16_384)
    assert fail(seed, seed.running("b"), long) == "dead"

    assert error_of(value(seed, "b")) == ("KeyError", repr(message), None)
    assert "test_errors_of_dead_jobs" in seed.snapshot()["outbox"][-1][1]["jobs"]


def test_the_value_of_a_job_that_died_without_an_error_does_not_change(seed: Seed) -> None:
    claim = seed.running("a")
    before = value(seed)

    assert fail(seed, claim, "null") == "dead"

    assert value(seed) == before
    assert error_of(before) is None


@pytest.mark.parametrize("short", [True, False], ids=["short", "with a line in state"])
def test_a_requeued_job_runs_with_its_arguments_and_stores_its_next_error(
    seed: Seed, short: bool
) -> None:
    args = json.dumps({"x": "y" * (1 if short else 500)})
    fail(seed, seed.running("a", args_json=args), ERROR)
    seed.requeue("a")

    again = seed.claim_one("a")
    seed.assert_consistent()

    assert json.loads(again.spec)["args"] == json.loads(args)
    fail(seed, again, '{"type":"LookupError","message":""}')
    assert str(error_of(value(seed))) == "LookupError"
    assert spec_of(value(seed)) == again.spec


def test_line_breaks_in_an_error_of_another_client_do_not_damage_the_json(seed: Seed) -> None:
    fail(seed, seed.running("a"), '{\r\n "type": "E",\n "message": "m"}')

    assert error_of(value(seed)) == ("E", "m", None)
    assert spec_of(value(seed)) == spec()


def test_a_very_long_error_is_stored_only_in_the_event(seed: Seed) -> None:
    said = json.dumps({"type": "E", "message": "x" * 20_000})

    fail(seed, seed.running("a"), said)

    assert error_of(value(seed)) is None
    assert said in seed.snapshot()["outbox"][-1][1]["jobs"]


def test_a_job_of_an_unknown_task_dies_with_the_last_workers_error(
    seed: Seed,
) -> None:
    claim = seed.running("a")
    said = '{"type":"LookupError","message":"no task \'t\'"}'
    records = [(claim.id, claim.fence, "unknown_task", said, "", 0)]

    rolled_back = claims.rollback(seed.queue, "w-1", records, unknown_max=1)

    assert seed.client.run(rolled_back) == {"a": "dead"}
    assert str(error_of(value(seed))) == "LookupError: no task 't'"
