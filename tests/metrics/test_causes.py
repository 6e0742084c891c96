"""The sentences of `rq-core top` about causes. A sentence is true in its case, for one job and for several jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rq_core.metrics.causes import causes
from rq_core.model.plugins import LogOverview, QueueLog
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.kit.seed import Seed
from tests.kit.wait import wait_until

LEASE_MS = 30_000


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    with Seed(valkey_url, real_clock=True) as made:
        yield made


def said(seed: Seed) -> dict[str, str]:
    """Return what `rq-core top` says about the queue, by the name of the alert."""
    return {each.alert: each.says for each in causes(seed.client.run(seed.calls.reads.overview()))}


def works(
    seed: Seed, worker: str = "w-1", *, silent_s: int = 0, tasks: Sequence[str] = ("t",)
) -> None:
    """Register a running worker, or one that was last seen ``silent_s`` seconds ago."""
    says = Presence("web-1", 1, "0.1.0", "c0de0001", (seed.queue,), 1, 1, 0)
    seed.client.run(worker_registry.announce("rqc", worker, says, [seed.queue], tasks))
    row = seed.control.hget(seed.keys("workers"), worker)
    seen, _, facts = str(row).partition(" ")
    seed.control.hset(seed.keys("workers"), worker, f"{int(seen) - silent_s} {facts}")


@pytest.mark.parametrize(("tasks", "why"), [
    (["t"], "lack the task or refuse its arguments"),
    (["other"], "do not have this task"),
])  # fmt: skip
def test_the_cause_of_jobs_with_an_unknown_task_names_the_task(
    seed: Seed, tasks: list[str], why: str
) -> None:
    seed.enqueue("a", "b")
    seed.rollback(*seed.claim().jobs, reason="unknown_task")
    assert "RqCoreTaskUnknown" not in said(seed)

    works(seed, tasks=tasks)

    assert said(seed)["RqCoreTaskUnknown"] == (
        f"at least 2 jobs of t were given back by workers, which {why}"
    )


def late_schedule(seed: Seed, name: str, *, late_s: int) -> None:
    """Make a schedule whose instant is ``late_s`` seconds late. The worker that took the instant has died."""
    made = Declaration.of(seed.job("-"), recurrence(name, every=3600))
    seed.client.run(seed.calls.schedules.put(seed.queue, [made]))
    (stored,) = seed.client.run(seed.calls.schedules.stored(seed.queue, [name])).values()
    now = int(seed.control.time()[0]) * 1000
    late = stored._replace(next_ms=now - late_s * 1000, due_ms=now - late_s * 1000)
    seed.control.hset(seed.keys("schedules"), name, str(late))
    seed.control.zadd(seed.keys("ticks"), {name: now + 5_000})


def test_the_cause_of_a_late_schedule_names_the_schedule_and_says_what_to_do(seed: Seed) -> None:
    late_schedule(seed, "soon", late_s=50)
    late_schedule(seed, "other", late_s=-300)
    assert "RqCoreScheduleLate" not in said(seed)
    late_schedule(seed, "nightly", late_s=240)

    says = "schedule nightly of queue q is late by 4 min"
    assert f"{says}: no worker runs; start one" == said(seed)["RqCoreScheduleLate"]
    works(seed)
    assert "their logs say why" in said(seed)["RqCoreScheduleLate"]
    facts = {"audit": "on", "backlog_jobs": 50, "backlog_max_jobs": 40}
    seed.control.hset(seed.keys("meta"), mapping=facts)
    assert "start the mirror" in said(seed)["RqCoreScheduleLate"]


def lose(seed: Seed, *ids: str, active_ms_ago: int, back_in_ms: int = 0) -> None:
    """Claim jobs for a worker that then vanishes. Their leases expired two minutes ago."""
    seed.enqueue(*ids)
    seed.claim()
    seconds, _ = seed.control.time()
    now = int(seconds) * 1000
    seed.control.zadd(seed.keys("leases"), dict.fromkeys(ids, now - 120_000))
    facts = {"last_activity": now - active_ms_ago, "no_reap_before": now + back_in_ms}
    seed.control.hset(seed.keys("meta"), mapping=facts)


def test_the_cause_of_lost_jobs_names_the_time_since_the_last_claim(seed: Seed) -> None:
    lose(seed, "a", active_ms_ago=180_000)

    assert said(seed)["RqCoreLeasesOver"] == (
        "1 running job has lost its worker, and no worker has claimed for 3 min"
    )


def test_the_cause_of_lost_jobs_mentions_a_live_worker_that_does_not_claim(seed: Seed) -> None:
    lose(seed, "a", "b", active_ms_ago=180_000)
    works(seed)

    assert said(seed)["RqCoreLeasesOver"] == (
        "2 running jobs have lost their worker, and no worker has claimed for 3 min,"
        " although one reported in the last 30 s"
    )


def test_the_cause_of_lost_jobs_states_when_a_worker_that_is_back_will_take_them_over(
    seed: Seed,
) -> None:
    """Checks a worker that runs and waits after an outage. The sentence does not say that no worker runs."""
    lose(seed, "a", "b", active_ms_ago=0, back_in_ms=1_200_000)
    works(seed)

    assert said(seed)["RqCoreLeasesOver"] == (
        "2 running jobs have lost their worker; a worker is back, and takes them over in 20 min"
    )


def test_right_after_a_failover_the_cause_of_lost_jobs_does_not_say_that_a_worker_is_back(
    seed: Seed,
) -> None:
    """Checks the time after a failover, in which Redis ends no expired leases. No worker has claimed yet."""
    lose(seed, "a", active_ms_ago=180_000, back_in_ms=20_000)

    assert said(seed)["RqCoreLeasesOver"].endswith(", and no worker has claimed for 3 min")


def test_the_cause_of_lost_jobs_says_that_the_next_claim_of_a_live_worker_takes_them_over(
    seed: Seed,
) -> None:
    lose(seed, "a", active_ms_ago=0, back_in_ms=-LEASE_MS)

    assert said(seed)["RqCoreLeasesOver"] == (
        "1 running job has lost its worker; a worker is alive, and its next claim takes it over"
    )


def test_the_cause_about_silent_workers_does_not_count_a_worker_that_stopped_in_an_orderly_way(
    seed: Seed,
) -> None:
    """Checks two workers that are gone. Only the worker that was killed counts as silent."""
    seed.enqueue("a")
    works(seed, "w-killed", silent_s=600)
    works(seed, "w-stopped")
    seed.client.run(worker_registry.leave("rqc", "w-stopped", [seed.queue]))

    assert (
        said(seed)["RqCoreNoWorker"]
        == "1 ready, and no worker runs; a worker fell silent 10 min ago"
    )


def test_causes_use_the_singular_for_one_job(seed: Seed) -> None:
    seed.cap("queue", 1)
    seed.enqueue("a", "b")
    seed.claim()
    works(seed)
    assert (
        said(seed)["RqCoreScopeFull"] == "the cap of the queue is full, 1 of 1 running; 1 job waits"
    )
    seed.configure(paused=1)
    assert said(seed)["RqCoreQueuePaused"] == "paused, and 1 job is ready"


def test_the_cause_about_paused_scopes_names_paused_and_probing_scopes_and_the_operator(
    seed: Seed,
) -> None:
    """Checks a pause by a failure, a probe, an operator's pause, and a scope that has failed without a pause."""
    family = "ask.host@60s:failures"
    seed.cap(family, "1/60000ms/3600000")
    seed.cap(f"{family}=probed", "1/60000ms/1")
    seed.cap(f"{family}=well", "2/60000ms/1")
    ids = ("failed", "probed", "well")
    seed.enqueue(*(seed.job(each, scopes=[f"{family}={each}"]) for each in ids))
    works(seed)
    for claim in seed.claim(10).jobs:
        seed.fail(claim, delay_ms=0)
    begun: list[str] = []

    def has_begun() -> bool:
        begun.extend(claim.id for claim in seed.claim(10).jobs)
        return "probed" in begun

    wait_until(has_begun, "the probe begins")
    seed.client.run(seed.client.calls.pauses.pause(seed.queue, f"{family}=mended", by="ada"))

    assert sorted(begun) == ["probed", "well"]
    assert said(seed)["RqCoreScopePaused"] == (
        f"{family}=failed is paused for 60 min; {family}=mended is paused until resume-scope, by ada; "
        f"{family}=probed is probing with job probed;"
        f" `rq-core resume-scope {seed.queue} {family}=failed` ends the first pause"
    )


def test_a_family_counts_as_full_only_if_a_job_waits_for_a_key_that_is_not_paused(
    seed: Seed,
) -> None:
    """Checks an operator's pause of one key of a rate. Then another key is spent."""
    family = "ask.host@60s"
    seed.cap(family, "1/3600000ms/1")
    works(seed)
    seed.client.run(seed.client.calls.pauses.pause(seed.queue, f"{family}=paused", by="ada"))
    seed.enqueue(seed.job("a", scopes=[f"{family}=paused"]))
    assert seed.claim().jobs == ()

    assert said(seed)["RqCoreScopePaused"].startswith(f"{family}=paused is paused until")
    assert "RqCoreScopeFull" not in said(seed)

    seed.enqueue(*(seed.job(each, scopes=[f"{family}=spent"]) for each in ("b", "c")))
    assert [claim.id for claim in seed.claim(10).jobs] == ["b"]
    seed.claim()

    assert said(seed)["RqCoreScopeFull"].startswith(
        f"the rate of {family} is spent for some of its keys"
    )


def test_the_log_names_the_failures_of_a_paused_scope(seed: Seed) -> None:
    """Checks that a cause uses a pause in the log only if that pause is in force."""
    scope = "ask.host@60s:failures=h"
    seed.cap(scope, "1/60000ms/3600000")
    seed.enqueue(seed.job("a", scopes=[scope]))
    (claim,) = seed.claim(1).jobs
    seed.fail(claim, delay_ms=1)
    state = seed.client.run(seed.calls.reads.overview())
    until_ms = state.queues[0].paused_scopes[scope].until_ms
    failure = {"job_id": "a", "error_type": "OSError"}
    pause = {
        "cause": "failures",
        "until_ms": until_ms,
        "resumed_at_ms": None,
        "failures": [failure],
    }

    def says(**other: Any) -> str:
        log = QueueLog(seed.queue, 1, 1, 0, 0, 0, 0, None, None, {}, {scope: pause | other})
        found = causes(state, LogOverview((log,), ()))
        return next(each.says for each in found if each.alert == "RqCoreScopePaused")

    assert ", by 1 failure: OSError of job a; " in says()
    assert "OSError" not in says(until_ms=1)
    assert "OSError" not in says(resumed_at_ms=2)


def test_the_number_of_waiting_jobs_is_a_lower_bound_if_there_are_many_lanes(seed: Seed) -> None:
    seed.cap("tenant", 0)
    seed.enqueue(
        *(seed.job(f"j{n}-{m}", scopes=[f"tenant={n}"]) for n in range(20) for m in range(3))
    )
    seed.claim()
    works(seed)

    assert said(seed)["RqCoreScopeFull"].startswith(
        "the cap of tenant is full for some of its keys, 0 each; at least 12 jobs wait in 20 lanes, "
    )
