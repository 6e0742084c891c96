"""`rq-core jobs` lists a queue's jobs in pages, and marks each job whose task no running worker knows."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.table.machine import Priority
from rq_core.protocol.calls import claims
from rq_core.protocol.reads import job_reads, worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.cli.conftest import CommandLine


def enqueue(client: Client, *ids: str, task: str = "send", **how: Any) -> None:
    priority = Priority(how.pop("priority", "normal"))
    jobs = [NewJob(each, "mail", profile(task, priority), "{}", **how) for each in ids]
    client.run(client.calls.enqueue.many(jobs))


def here(client: Client, worker: str, *tasks: str) -> None:
    """Register a running worker with these tasks."""
    says = Presence("h", 1, "0.1.0", f"c0de-{worker}", ("mail",), 10, 0, 1)
    client.run(worker_registry.announce("rqc", worker, says, ["mail"], tasks))


def ids(found: list[dict[str, Any]]) -> list[str]:
    return [each["id"] for each in found]


@pytest.fixture
def queue(client: Client, kill: Callable[..., None]) -> None:
    """Fill a queue with dead, running, ready and scheduled jobs. Ready jobs are in a list and in a lane."""
    kill("mail", "dead")
    enqueue(client, "running")
    client.run(claims.claim("mail", "w-1", 1))
    enqueue(client, "low", priority="low")
    enqueue(client, "plain")
    enqueue(client, "in-lane", lane="2+send.tenant=acme")
    enqueue(client, "later", task="report", delay_ms=60_000)
    enqueue(client, "much-later", delay_ms=120_000)


@pytest.mark.usefixtures("queue")
def test_the_jobs_command_lists_running_then_ready_then_scheduled_jobs(cli: CommandLine) -> None:
    found = cli.json("jobs", "mail")

    assert ids(found) == ["running", "plain", "low", "in-lane", "later", "much-later"]
    assert [each["state"] for each in found] == ["running", *["ready"] * 3, *["scheduled"] * 2]
    table = cli.ok("jobs", "mail")
    assert re.search(r"^ running +running +\d s +send +by w-1", table, re.MULTILINE)
    assert re.search(r"^ low +ready +\d s +send +low priority", table, re.MULTILINE)
    assert re.search(r"^ in-lane +ready .* lane 2\+send.tenant=acme", table, re.MULTILINE)
    assert re.search(
        r"^ later +scheduled +\d s +report +due in (\d\d s|1 min)", table, re.MULTILINE
    )


@pytest.mark.usefixtures("queue")
def test_the_jobs_command_filters_by_state_and_task(cli: CommandLine) -> None:
    assert ids(cli.json("jobs", "mail", "--state", "dead", "--state", "running")) == [
        "running",
        "dead",
    ]
    assert ids(cli.json("jobs", "mail", "--task", "report")) == ["later"]
    assert cli.json("jobs", "mail", "--task", "report", "--state", "ready") == []
    assert cli.ok("jobs", "mail", "--task", "report", "--state", "ready") == (
        "no jobs of task report in mail are ready\nno worker runs for mail\n"
    )


@pytest.mark.usefixtures("queue")
def test_the_jobs_command_says_that_a_limit_cut_the_list(cli: CommandLine) -> None:
    assert ids(cli.json("jobs", "mail", "--limit", "2")) == ["running", "plain"]
    assert "the first 2; --limit shows more\n" in cli.ok("jobs", "mail", "--limit", "2")
    assert "--limit" not in cli.ok("jobs", "mail", "--limit", "7")


@pytest.mark.usefixtures("queue")
def test_the_jobs_command_marks_a_task_that_no_running_worker_has(
    cli: CommandLine, client: Client
) -> None:
    assert [each["task_known"] for each in cli.json("jobs", "mail")] == [None] * 6
    assert cli.ok("jobs", "mail").endswith("no worker runs for mail\n")

    here(client, "w-1", "send")
    here(client, "w-2", "bill")

    found = {each["id"]: each["task_known"] for each in cli.json("jobs", "mail")}
    assert [each for each, known in found.items() if not known] == ["later"]
    table = cli.ok("jobs", "mail")
    assert re.search(r"^ later .* no live worker has this task; due in", table, re.MULTILINE)
    assert table.count("no live worker has this task") == 1
    assert re.search(
        r"^waits for +a worker: no live worker has this task$",
        cli.ok("job", "later"),
        re.MULTILINE,
    )
    here(client, "w-3", "report")
    assert "no live worker" not in cli.ok("jobs", "mail")
    assert cli.json("job", "later")["task_known"] is True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Return a list to which the client appends each command that it sends."""
    sent: list[list[Any]] = []
    real = Client.run

    def run(self: Client, plan: Any) -> Any:
        def watched() -> Any:
            try:
                step = next(plan)
                while True:
                    sent.extend(getattr(step, "commands", ()))
                    step = plan.send((yield step))
            except StopIteration as end:
                return end.value

        return real(self, watched() if hasattr(plan, "send") else plan)

    monkeypatch.setattr(Client, "run", run)
    return sent


def test_the_jobs_command_stops_after_a_fixed_number_of_jobs_in_a_long_queue(
    cli: CommandLine, client: Client, monkeypatch: pytest.MonkeyPatch, asked: list[list[Any]]
) -> None:
    """Checks a filter without a match. The command stops after a fixed number of jobs."""
    monkeypatch.setattr(job_reads, "PAGE", 50)
    monkeypatch.setattr(job_reads, "MEMBERS_MAX", 120)
    monkeypatch.setattr("rq_core.views.jobs.MEMBERS_MAX", 120)
    enqueue(client, *(f"j{n}" for n in range(200)))
    asked.clear()

    said = cli.ok("jobs", "mail", "--task", "nonesuch")

    pages = [c for c in asked if c[0] == "LRANGE" and c[1].endswith("ready:2")]
    assert [c[2:] for c in pages] == [[0, 49], [50, 99], [100, 119]]
    assert max(len(c) for c in asked) <= 50 + 5
    assert "read 120 of the queue's jobs and stopped" in said


def test_the_jobs_command_lists_no_job_twice_if_its_state_changes(
    client: Client,
) -> None:
    """Checks a claim between the read of running jobs and the read of ready jobs."""
    enqueue(client, "a", "b")
    plan = client.calls.reads.jobs("mail", states=["running", "ready"])  # type: ignore[list-item]
    step = next(plan)
    moved = False
    try:
        while True:
            if any(c[0] == "LRANGE" for c in step.commands) and not moved:  # type: ignore[union-attr]
                client.run(claims.claim("mail", "w-1", 1))
                moved = True

            def one(step: Any = step) -> Any:
                return (yield step)

            step = plan.send(client.run(one()))
    except StopIteration as end:
        found = end.value

    assert moved
    assert [(job.id, job.state) for job in found.jobs] == [("b", "ready")]


def give_back(client: Client, reason: str, *more: Any) -> None:
    """Claim the first job, and give it back."""
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    record = (held.id, held.fence, reason, "null", "", *(more or (0,)))
    client.run(claims.rollback("mail", "w-1", [record]))


@pytest.mark.parametrize(
    ("reason", "delay_ms", "why", "to_do"),
    [
        ("unknown_task", 0, "the worker does not have its task", "start a worker whose code has"),
        ("unknown_arguments", 0, "the worker's task does not take its arguments",
            'the log of the worker says why ("job cannot be run here")'),
        ("snoozed", 60_000, "its handler raised Snooze", ""),
        ("shutdown", 0, "the worker stopped", ""),
        ("not_my_turn", 0, "", ""),
    ],
)  # fmt: skip
def test_the_job_command_says_why_a_worker_gave_a_job_back_to_its_queue_and_what_to_do(
    reason: str, delay_ms: int, why: str, to_do: str, cli: CommandLine, client: Client
) -> None:
    """Checks that the command prints the reason of the rollback. The job's state does not show the reason."""
    enqueue(client, "a")
    give_back(client, reason, delay_ms)

    shown = cli.ok("job", "a")

    told = re.escape(f"{reason}, {why}" if why else reason)
    assert re.search(rf"^given back +by w-1, .* ago \(.*\): {told}$", shown, re.MULTILINE)
    assert (
        re.search(rf"^to do +.*{re.escape(to_do)}", shown, re.MULTILINE)
        if to_do
        else ("to do" not in shown)
    )
    assert f"given back: {reason}" in cli.ok("jobs", "mail")
    for found in (cli.json("job", "a"), *cli.json("jobs", "mail")):
        assert (found["given_back"]["reason"], found["given_back"]["by"]) == (reason, "w-1")


def test_the_job_command_reports_a_rollback_whose_event_has_left_redis(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")
    give_back(client, "unknown_arguments")
    client.run(client.calls.delivery.ask([["XTRIM", "rqc:{mail}:outbox", "MAXLEN", 0]]))

    says = "by workers that lack its task or refuse its arguments"
    assert re.search(
        rf"^given back +1 time {says}; .*audit history a`", cli.ok("job", "a"), re.MULTILINE
    )
    assert f"given back 1 time {says}" in cli.ok("jobs", "mail")
    assert cli.json("job", "a")["given_back"] is None


def test_the_job_command_shows_no_rollback_of_a_claim_if_a_later_claim_has_failed(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")
    give_back(client, "shutdown")
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    client.run(claims.fail("mail", "w-1", [(held.id, held.fence, "retry", 60_000, "", "null")]))

    assert "given back" not in cli.ok("job", "a") + cli.ok("jobs", "mail")


def test_the_job_command_gives_no_advice_once_a_worker_has_the_task(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")
    give_back(client, "unknown_task")
    cli.ok("edit", "a", "--now")
    give_back(client, "unknown_task")

    assert re.search(r"^given back +2 times, last by w-1, ", cli.ok("job", "a"), re.MULTILINE)
    here(client, "w-2", "send")
    assert "to do" not in cli.ok("job", "a")


def test_the_job_command_says_what_to_do_if_no_worker_runs(
    cli: CommandLine, client: Client
) -> None:
    enqueue(client, "a")

    assert re.search(r"^waits for +a worker: none runs for mail$", cli.ok("job", "a"), re.MULTILINE)
    here(client, "w-2", "bill")
    assert re.search(r"^to do +start a worker whose code has", cli.ok("job", "a"), re.MULTILINE)
