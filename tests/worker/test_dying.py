"""Workers that end by themselves, are suspended, or are killed. Each worker runs in a separate process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from rq_core.app.app import App
from rq_core.connections.client import Client
from tests.kit import crew
from tests.kit.crew import worker_process
from tests.kit.processes import lives
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.worker.conftest import emptied, event_types, events, gone, log_of, one_engine


@pytest.mark.slow
def test_the_job_of_a_killed_worker_runs_again_within_a_lease(
    client: Client, witness: crew.Witness, app: App
) -> None:
    handle = crew.sleeping.enqueue(60)
    with worker_process(app.redis_url, witness) as first:
        wait_until(lambda: witness.lines("begin"), "the job runs", timeout=20)
        with worker_process(app.redis_url, witness):
            wait_until(
                lambda: client.run(_workers(client)) >= 2, "the second worker waits", timeout=20
            )
            os.kill(first.pid, signal.SIGKILL)
            wait_until(lambda: len(witness.lines("begin")) == 2, "it runs again", timeout=10)

    log = events(client, handle.id)
    assert [str(e.event) for e, _ in log] == ["enqueued", "claimed", "lease_expired", "claimed"]
    expired = log[2]
    assert expired[1]["worker"] == log[1][0].by
    assert expired[1]["losses"] == 1


def _workers(client: Client):
    """Return the number of connections that wait for a wake token."""
    (text,) = yield from client.calls.delivery.ask([["CLIENT", "LIST"]])
    return sum("cmd=blpop" in line for line in text.splitlines())


@pytest.mark.slow
def test_a_worker_that_is_suspended_beyond_its_lease_settles_nothing_afterwards(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks a worker that resumes, finishes its job, and presents a fence that is no longer in force."""
    handle = crew.stopping.enqueue()
    with worker_process(app.redis_url, witness) as zombie:
        wait_until(lambda: zombie.is_stopped, "it is stopped while the job runs", timeout=20)
        with worker_process(app.redis_url, witness):
            wait_until(
                lambda: "succeeded" in event_types(client, handle.id),
                "another worker has done the job",
                timeout=20,
            )
            os.kill(zombie.pid, signal.SIGCONT)
            wait_until(
                lambda: "settlement_refused" in event_types(client, handle.id),
                "the zombie's report is refused",
                timeout=20,
            )

    assert event_types(client, handle.id) == [
        "enqueued", "claimed", "lease_expired", "claimed", "succeeded", "settlement_refused",
    ]  # fmt: skip
    refused = events(client, handle.id)[-1][1]
    assert (refused["outcome"], refused["reason"]) == ("complete", "gone")


@pytest.mark.slow
def test_no_job_loses_its_claim_if_all_workers_are_suspended_together(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks a suspended machine. The first worker that resumes must not end the claims of the other workers."""
    handles = [crew.sleeping.enqueue(3.5 * crew.LEASE) for _ in range(4)]
    options = ("--concurrency", "2")
    with (
        worker_process(app.redis_url, witness, *options) as first,
        worker_process(app.redis_url, witness, *options) as second,
    ):
        wait_until(lambda: len(witness.lines("begin")) == 4, "all run", timeout=20)
        for worker in (first, second):
            os.kill(worker.pid, signal.SIGSTOP)
        over = time.monotonic() + 2.2 * crew.LEASE
        wait_until(lambda: time.monotonic() > over, "their leases are over")
        for worker in (first, second):
            os.kill(worker.pid, signal.SIGCONT)
        wait_until(emptied(client), "all are done", timeout=20)

    for handle in handles:
        assert event_types(client, handle.id) == ["enqueued", "claimed", "succeeded"]


@pytest.mark.slow
def test_after_sigterm_a_worker_lets_its_jobs_finish_and_claims_no_more(
    client: Client, witness: crew.Witness, app: App
) -> None:
    running = crew.gated.enqueue()
    with worker_process(app.redis_url, witness, "--concurrency", "1") as process:
        wait_until(lambda: witness.lines("begin"), "the job runs", timeout=20)
        waiting = crew.sleeping.enqueue(1.0)
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping" in witness.log(), "it is stopping", timeout=20)
        witness.let_end()
        assert process.wait(20) == 0

    assert event_types(client, running.id)[-1] == "succeeded"
    assert event_types(client, waiting.id) == ["enqueued"]


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_worker_claims_no_job_later_than_100_ms_after_sigterm(
    client: Client, witness: crew.Witness, app: App, options: tuple[str, ...]
) -> None:
    """Checks a worker with free places, while many jobs wait."""
    app.enqueue_many(crew.sleeping.job(0.02) for _ in range(3_000))
    with worker_process(app.redis_url, witness, "--concurrency", "20", *options) as process:
        wait_until(lambda: len(witness.lines("end")) > 50, "it works", timeout=20)
        process.send_signal(signal.SIGTERM)
        sent = client.run(client.calls.delivery.handshake("crew")).now_ms
        assert process.wait(20) == 0

    log = log_of(client)
    claimed = [entry.at_ms for entry in log if entry.event == "claimed"]
    assert len(claimed) > 2
    assert max(claimed) <= sent + 100
    # What a claim under way brought was run, or given back unspent.
    assert client.run(client.calls.reads.counts("crew")).running == 0


@pytest.mark.slow
def test_a_job_that_still_runs_at_the_end_of_the_grace_is_given_back_to_its_queue(
    client: Client, witness: crew.Witness, app: App
) -> None:
    handles = [crew.sleeping.enqueue(60), crew.deaf.enqueue(60)]
    with worker_process(app.redis_url, witness, "--grace", "0.2") as process:
        wait_until(lambda: len(witness.lines("begin")) == 2, "the jobs run", timeout=20)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0

    for handle in handles:
        job = client.run(client.calls.reads.job(handle.id, ["crew"]))
        assert job is not None
        assert job.state == "ready"
        assert "failed" not in job.fields
        assert "lost" not in job.fields
        assert events(client, handle.id)[-1][1]["reason"] == "shutdown"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
def test_a_second_signal_ends_the_grace_period_of_a_worker(
    client: Client, witness: crew.Witness, app: App, options: tuple[str, ...]
) -> None:
    handle = crew.sleeping.enqueue(60)
    with worker_process(app.redis_url, witness, "--grace", "60", *options) as process:
        wait_until(lambda: witness.lines("begin"), "the job runs", timeout=20)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in witness.log(), "it is stopping")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0

    assert handle.state() == "ready"


@pytest.mark.slow
def test_a_job_that_kills_its_worker_repeatedly_dies(
    client: Client, witness: crew.Witness, app: App
) -> None:
    handle = crew.sleeping.with_options(max_losses=2).enqueue(60)
    with worker_process(app.redis_url, witness, "--processes", "2"):
        for losses in (1, 2):
            wait_until(lambda n=losses: len(witness.lines("begin")) == n, "it runs", timeout=30)  # type: ignore[misc]
            os.kill(witness.lines("begin")[-1]["pid"], signal.SIGKILL)
        wait_until(lambda: handle.state() == "dead", "the job is dead", timeout=30)

    job = client.run(client.calls.reads.job(handle.id, ["crew"]))
    assert job is not None
    assert job.fields["reason"] == "poison"


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_jobs_that_ran_beside_a_job_that_kills_its_workers_do_not_die_with_that_job(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks jobs that run beside poison jobs. A poison job kills its worker, which is a loss for every job of the
    worker.

    The test takes long on a busy machine: a process starts six times, and a suspect may be delayed for 8 s.
    """
    jobs = [crew.sleeping.with_options(max_losses=3).job(0.5) for _ in range(8)]
    bad = [crew.poison.with_options(max_losses=3).job() for _ in range(2)]
    # First in line, they are begun before what was claimed with them is given back.
    app.enqueue_many([*bad, *jobs])
    with worker_process(app.redis_url, witness, "--processes", "2"):
        wait_until(
            gone(client, *(job.id for job in jobs)),
            lambda: f"the innocent jobs are done: {witness.log()}",
            timeout=140,
        )
        wait_until(
            lambda: all(app.handle(job).state() == "dead" for job in bad),
            lambda: f"the poison jobs are dead: {witness.log()}",
            timeout=140,
        )

    for job in bad:
        dead = client.run(client.calls.reads.job(job.id, ["crew"]))
        assert dead is not None
        assert (dead.fields["reason"], dead.fields["lost"]) == ("poison", "3")
    losses = [event_types(client, job.id).count("lease_expired") for job in jobs]
    assert max(losses) <= len(bad), "one for each poison job at most"


@pytest.mark.slow
def test_the_supervisor_replaces_a_killed_worker(
    client: Client, witness: crew.Witness, app: App
) -> None:
    with worker_process(app.redis_url, witness, "--processes", "2") as supervisor:
        first = app.enqueue_many(crew.function.job(n=n) for n in range(20)).ids
        # Also reported: else they would run again.
        wait_until(gone(client, *first), "the jobs are done", timeout=30)
        os.kill(witness.lines()[0]["pid"], signal.SIGKILL)
        wait_until(lambda: "restarting" in witness.log(), "the supervisor has noticed", timeout=20)
        app.enqueue_many(crew.function.job(n=n) for n in range(20, 40))
        wait_until(lambda: len(witness.lines()) == 40, "the jobs are done", timeout=30)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


@pytest.mark.slow
def test_a_worker_whose_handler_ends_the_process_with_status_0_is_replaced(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks a worker that ends without a signal to stop. The supervisor treats this end as a crash."""
    handle = crew.exiting.enqueue(0)
    with worker_process(app.redis_url, witness, "--processes", "2") as supervisor:
        wait_until(lambda: witness.lines("exiting"), "it runs", timeout=30)
        wait_until(lambda: "restarting" in witness.log(), "the supervisor has noticed", timeout=10)
        wait_until(lambda: handle.state() == "gone", "the job is done", timeout=30)
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(30) == 0


@one_engine
@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["alone", "supervised"])
@pytest.mark.slow
def test_sigterm_ends_a_worker_though_the_redis_server_is_down(
    start_redis: Callable[..., RedisServer], witness: crew.Witness, options: tuple[str, ...]
) -> None:
    server = start_redis()
    with App(server.url) as app:
        app.enqueue("crew", "sleeping", {"seconds": 0.1})
    with worker_process(server.url, witness, "--grace", "1", *options) as process:
        wait_until(lambda: witness.lines("end"), "the worker works", timeout=20)
        server.kill()
        wait_until(lambda: "trying again" in witness.log(), "the worker has noticed", timeout=10)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, witness.log()


@pytest.mark.slow
def test_workers_end_when_their_supervisor_ends(
    client: Client, witness: crew.Witness, app: App
) -> None:
    """Checks a supervisor that is killed and cannot signal its workers. No worker may run on after the next deploy."""
    with worker_process(app.redis_url, witness, "--processes", "2", "--grace", "1") as supervisor:
        app.enqueue_many(crew.function.job(n=n) for n in range(20))
        wait_until(lambda: len(witness.lines()) == 20, "the jobs are done", timeout=30)
        workers = {line["pid"] for line in witness.lines()}
        supervisor.kill()
        wait_until(lambda: not any(map(lives, workers)), "the workers have ended", timeout=20)
