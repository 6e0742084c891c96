"""Plain waiting jobs. They have no line in the key `state`, and each script and each read treats them as ready."""

import pytest

from rq_core.model.keys import queue_keys
from rq_core.model.table.machine import State
from rq_core.protocol.reads.steps import lines_of as asked_lines
from rq_core.protocol.reads.steps import read_lines
from tests.kit.consistency import assert_consistent
from tests.kit.seed import NO_FENCE, Seed, events_of, spec
from tests.kit.snapshots import lines_of
from tests.lua.contents.entries import T

LONG = '{"text":"' + "y" * 5_000 + '"}'


def test_a_job_without_optional_fields_gets_a_state_line_after_its_first_claim(seed: Seed) -> None:
    """The claim does not change the job's value in the key `jobs`: a line, and then the JSON."""
    seed.enqueue("a", "b")
    value = seed.control.hget(seed.keys("jobs"), "a")
    assert seed.snapshot()["state"] == {}
    seed.rollback(seed.claim_one("a"))

    assert seed.snapshot()["state"] == {"a": f"ready task=t claim=1 seq=1 since={T}"}
    assert value == seed.control.hget(seed.keys("jobs"), "a") == f"task=t seq=1 since={T}\n{spec()}"
    claim, other = seed.claim().jobs
    assert (claim.id, claim.number, claim.spec) == ("a", 2, spec())
    assert (other.id, other.number, other.spec) == ("b", 1, spec())


@pytest.mark.parametrize("priority", ["normal", "high"])
def test_a_job_with_long_arguments_has_a_state_line(seed: Seed, priority: str) -> None:
    """A plain job has its line before its JSON. Lua would have to copy a long JSON for this, which costs too much."""
    seed.enqueue("a", "b", args_json=LONG, priority=priority)
    seed.enqueue("c", priority=priority)
    head = "task=t" if priority == "normal" else "task=t priority=high"

    assert seed.snapshot()["state"] == {
        "a": f"ready {head} seq=1 since={T}",
        "b": f"ready {head} seq=2 since={T}",
    }
    assert_consistent(seed.snapshot())
    seed.cap("task=t", 1)
    assert [claim.spec for claim in seed.claim().jobs] == [spec().replace("{}", LONG)]
    assert str(seed.state("b")).startswith("ready task=t")


def test_the_calls_of_operators_report_a_job_without_a_state_line_as_ready(seed: Seed) -> None:
    seed.enqueue("a", "b", "c")

    assert seed.prune("a") == {"a": "ready"}
    assert seed.requeue("a") == {"a": "ready"}
    assert seed.restore(seed.lost("a", State.READY), seed.revived("b")) == {
        "a": "ready",
        "b": "removed",
    }
    assert seed.cancel("c", "nobody") == {"c": "cancelled", "nobody": "gone"}
    assert_consistent(seed.snapshot())
    assert [claim.id for claim in seed.claim().jobs] == ["a"]


def test_operators_calls_do_not_report_a_running_job_as_waiting(seed: Seed) -> None:
    seed.enqueue("a")
    claim = seed.claim_one("a")

    assert seed.cancel("a") == {"a": "cancelling"}
    assert seed.prune("a") == {"a": "cancelling"}
    assert seed.complete(claim) == {}


def test_the_fencing_token_of_an_old_job_is_refused_for_a_new_job_with_the_same_id(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    old = seed.claim_one("a")
    seed.complete(old)
    assert seed.fail(old) == {"a": "gone"}
    seed.enqueue("a")
    before = seed.snapshot()["jobs"]

    assert seed.complete(old, ("nobody", NO_FENCE)) == {"a": "stale", "nobody": "gone"}
    assert seed.extend([old]).lost == ("a",)
    assert before == seed.snapshot()["jobs"]


@pytest.mark.damaged
def test_attaching_a_mirror_logs_a_baseline_of_each_waiting_job(seed: Seed) -> None:
    seed.enqueue(*(f"a{n}" for n in range(1_500)), priority="high", attempts=5)
    seed.enqueue("lane", scopes=["tenant=x"])
    seed.enqueue("run", priority="critical")
    seed.claim_one("run")
    seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)

    seed.attach()

    entries = seed.entries()
    told = [job for entry in entries for job in entry.jobs if entry.event == "baseline"]
    assert {job.job_id for job in told} == set(lines_of(seed.snapshot()))
    assert max(len(entry.jobs) for entry in entries) <= 1_000
    (fields,) = [job.fields for job in told if job.job_id == "a7"]
    assert (fields["state"], fields["seq"], fields["max_attempts"]) == ("ready", 8, 5)
    snapshot = seed.snapshot()
    snapshot["outbox"] = snapshot["outbox"][1:]


def test_a_waiting_job_takes_a_lane_when_its_task_gets_a_cap(seed: Seed) -> None:
    """The job's line then names the lane. No event is logged."""
    seed.enqueue("a", "b", task="send")
    seed.cap("task=send", 1)

    assert [claim.id for claim in seed.claim().jobs] == ["a"]

    assert seed.state("b") == f"ready task=send lane=2+task=send seq=2 since={T}"
    assert events_of(seed.entries(), "b") == ["enqueued"]


@pytest.mark.parametrize("count", [1, 1_200])
def test_state_lines_of_many_jobs_are_read_without_arguments(seed: Seed, count: int) -> None:
    ids = [f"a{n}" for n in range(count)]
    seed.enqueue(*ids, args_json=LONG)
    seed.enqueue("lane", args_json=LONG, scopes=["tenant=x"])
    seed.claim_one("a0")
    asked = [*ids, "nobody", "lane"]

    found = seed.client.run(read_lines(seed.calls.delivery, queue_keys(seed.queue), asked))

    lines = lines_of(seed.snapshot())
    assert [lines.get(job_id) for job_id in asked] == found
    question = next(asked_lines(seed.keys, asked[-500:]))
    replies = seed.client.run(seed.calls.delivery.ask(question))
    assert "yyyy" not in str(replies)


def test_a_claim_of_jobs_without_state_lines_keeps_the_task_of_each_job(seed: Seed) -> None:
    """One claim takes several jobs, and must not use the fields of one job for the next."""
    tasks = ["send", "send", "pack", "send", "pack", "pack", "send"]
    seed.enqueue(*(seed.job(f"j{n}", task=task) for n, task in enumerate(tasks)))

    assert len(seed.claim(100).jobs) == len(tasks)

    lines = seed.control.hgetall(seed.keys("state"))
    said = [lines[f"j{n}"].split()[1] for n in range(len(tasks))]
    assert said == [f"task={task}" for task in tasks]
