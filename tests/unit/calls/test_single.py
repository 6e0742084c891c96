"""``enqueue_one`` enqueues one job without a plan. It must have the same outcome as the plan that enqueues one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.errors import OutcomeUnknown, RqCoreError, ServerUnavailable
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import enqueue
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.engine.plan import Lost, Patience, ReplyError, Send, Unsent
from rq_core.scripts.script import function
from tests.kit.transports import LossyTransport
from tests.unit.calls.scripted import EPOCH, FORGOTTEN, OK, Server, calls, job, plans

UNKNOWN = ReplyError("unknown command 'FCALL', with args beginning with:")
NOSCRIPT = ReplyError("NOSCRIPT No matching script")

ANSWERS: dict[str, dict[str, list[Any]]] = {
    "accepted": {"enqueue": [OK]},
    "a duplicate": {"enqueue": [["ok", "1", "duplicate", "-"]]},
    "a full scope": {"enqueue": [["ok", "1", "rejected", "tenant=a"]]},
    "discarded": {"enqueue": [["ok", "1", "discarded", "tenant=a"]]},
    "refused": {"enqueue": [["refused", "audit_backlog", "5", "4"]]},
    "a new epoch": {"enqueue": [EPOCH, OK]},
    "epochs without end": {"enqueue": [EPOCH]},
    "forgotten": {"enqueue": [FORGOTTEN, OK]},
    "no functions": {"enqueue": [UNKNOWN, NOSCRIPT, OK]},
    "lost once": {"enqueue": [Lost("gone"), OK]},
    "lost, then a duplicate": {"enqueue": [Lost("gone"), ["ok", "1", "duplicate", "-"]]},
    "lost for ever": {"enqueue": [Lost("gone")]},
    "lost, then full": {"enqueue": [Lost("gone"), ReplyError("OOM used memory"), OK]},
    "never sent": {"enqueue": [Unsent("no connection")]},
    "sent in the end": {"enqueue": [Unsent("no connection"), Unsent("no connection"), OK]},
    "loading": {"enqueue": [ReplyError("LOADING the dataset"), OK]},
    "full": {"enqueue": [ReplyError("OOM used memory")]},
    "a wrong type": {"enqueue": [ReplyError("WRONGTYPE Operation against a key")]},
    "no right": {"enqueue": [ReplyError("NOAUTH Authentication required")]},
}


def outcome(work: Callable[[], Accepted]) -> Any:
    try:
        return work()
    except RqCoreError as error:
        return type(error), str(error), getattr(error, "ids", None)


def played(answers: dict[str, list[Any]], *, by_plan: bool) -> tuple[Any, ...]:
    """Enqueue three jobs. ``answers`` has the server's prepared answers, by command.

    The answers to ``enqueue`` are for the second job. The enqueues of the other two jobs succeed.

    Returns the outcomes, the commands that were sent, and the time (s) that the client slept.
    """
    server = Server(**{**answers, "enqueue": [OK, *answers["enqueue"]]})
    operations = plans(server, name="c-1", patience=Patience(unsent=3, unknown=30))

    def sleep(seconds: float) -> None:
        server.slept += seconds
        server.now += seconds

    client = Client(transport=server, calls=operations, sleep=sleep)  # type: ignore[arg-type]
    found = []
    for number in (1, 2, 3):
        if number == 3:
            server.replies["enqueue"].clear()
            server.replies["enqueue"].append(OK)
        found.append(
            outcome(lambda n=number: client.run(operations.enqueue.one(job(n))))  # type: ignore[misc]
            if by_plan
            else outcome(lambda n=number: client.enqueue_one(job(n)))  # type: ignore[misc]
        )
    return found, server.seen, server.slept


@pytest.mark.parametrize("answers", ANSWERS.values(), ids=ANSWERS)
def test_the_short_path_that_enqueues_one_job_has_the_same_outcome_as_the_general_path(
    answers: dict[str, list[Any]],
) -> None:
    """Compares the commands, their order, slots and numbers, the pauses, and the texts of errors."""
    by_plan = played(answers, by_plan=True)
    alone = played(answers, by_plan=False)

    assert alone == by_plan
    assert alone[0][0] == Accepted(("job-1",))
    assert alone[0][2] == Accepted(("job-3",))


JOBS = {
    "plain": {},
    "delayed": {"delay_ms": 500},
    "due": {"due_ms": 1_800_000_000_000},
    "in a lane": {"lane": "2+tenant=acme", "full": "reject|tenant=acme|5"},
    "kept whole in the log": {"spec_max": 1_000},
    "with headers": {"headers_json": '{"trace":"é"}'},
    "odd": {"args_json": '{"text":"\\u00e9 é"}'},
}


@pytest.mark.parametrize("facts", JOBS.values(), ids=JOBS)
@pytest.mark.parametrize("timeout_ms", [None, 1_000])
def test_the_short_path_that_enqueues_one_job_sends_the_same_command_as_the_general_path(
    facts: dict[str, Any], timeout_ms: int | None
) -> None:
    server = Server(enqueue=[OK])
    operations = plans(server)
    server.run(operations.enqueue.one(job(1)))
    made = NewJob("job-2", "q", profile("task", timeout_ms=timeout_ms), "{}")._replace(**facts)

    for _ in range(2):
        begun = operations.single.begin(made)
        assert begun is not None
        (asked,) = rest_of(operations, made, begun).commands
        operations.single.end(made, begun)

        assert list(begun.command) == asked


def rest_of(operations: Any, made: NewJob, begun: enqueue.Begun) -> Send:
    step = next(operations.single.rest(made, begun))
    assert isinstance(step, Send)
    return step


def test_each_job_is_sent_with_its_own_task_and_delay_though_the_cache_of_common_fields_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cache finds the kind of a job by the ``id()`` of its profile. Here equal profiles are different objects."""
    monkeypatch.setattr(enqueue, "KINDS_MAX", 3)
    server = Server(enqueue=[OK])
    client = Client(transport=server, calls=plans(server))  # type: ignore[arg-type]
    server.run(client.calls.enqueue.one(job(0)))
    jobs = [
        NewJob(f"job-{n}", "q", replace(profile(f"task.{n % 5}")), "{}", delay_ms=n % 2)
        for n in range(40)
    ]

    for each in jobs:
        client.enqueue_one(each)

    sent = [args["kinds"] for args in server.sent("enqueue")[1:]]
    assert len(sent) == len(jobs)
    for n, kinds in enumerate(sent):
        assert kinds.startswith(f'[[2,{n % 2},"task=task.{n % 5}",')
    assert len(client.calls.single._kinds) <= 3


def test_the_slot_of_a_call_is_free_again_however_the_call_ends() -> None:
    """One call is interrupted. The next call has the same slot and the next number."""
    server = Server(enqueue=[OK])
    client = Client(transport=server, calls=plans(server))  # type: ignore[arg-type]
    server.run(client.calls.enqueue.one(job(1)))

    def interrupted(_commands: Sequence[Any], _meanwhile: Any = None) -> list[Any]:
        raise KeyboardInterrupt

    exchange, server.exchange = server.exchange, interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        client.enqueue_one(job(2))
    server.exchange = exchange  # type: ignore[method-assign]
    client.enqueue_one(job(3))

    (slot, first), (same, third) = calls(server)
    assert (same, third) == (slot, first + 2)


@pytest.mark.parametrize(
    ("trouble", "error", "seconds"),
    [(Unsent("no"), ServerUnavailable, 3.0), (Lost("no"), OutcomeUnknown, 30.0)],
)
def test_the_time_limit_for_repeating_a_call_begins_when_the_call_is_first_sent(
    trouble: Exception, error: type[RqCoreError], seconds: float
) -> None:
    """The first attempt already takes nearly the whole time limit."""
    server = Server(enqueue=[OK])
    operations = plans(server, patience=Patience(unsent=3, unknown=30))

    def sleep(pause: float) -> None:
        server.now += pause

    client = Client(transport=server, calls=operations, sleep=sleep)  # type: ignore[arg-type]
    client.enqueue_one(job(1))

    def slow(_command: Any) -> Exception:
        server.now += seconds - 0.01
        return trouble

    server.replies["enqueue"].clear()
    server.replies["enqueue"] += [slow, trouble]
    began = server.now
    with pytest.raises(error):
        client.enqueue_one(job(2))

    assert seconds < server.now - began < seconds + 0.1


def test_a_job_whose_answer_is_lost_is_enqueued_once(valkey_url: str) -> None:
    """A real server stores the answer in the slot, and repeats it for the second call."""
    transport = LossyTransport(valkey_url)
    with Client(valkey_url, transport=transport, sleep=lambda _: None) as client:  # type: ignore[arg-type]
        client.enqueue_one(job(1))
        transport.lose = 2

        assert client.enqueue_one(job(2)) == Accepted(("job-2",))
        assert sum(client.run(client.calls.reads.counts("q")).ready.values()) == 2
        name = function("enqueue").function
        sent = [call for call in transport.calls if call[1] == name][-3:]
        assert [list(call) for call in sent] == [list(sent[0])] * 3
