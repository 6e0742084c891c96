"""Delivery: calls are sent, and repeated after failures. The server has prepared replies."""

from __future__ import annotations

from typing import Any

import pytest

from rq_core import errors
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Lost, Patience, ReplyError, Send, Unsent
from rq_core.protocol.operations import Operations
from tests.unit.calls.scripted import EPOCH, FORGOTTEN, GREETING, OK, Server, calls, job, plans


def test_a_call_is_repeated_with_the_same_number_after_the_server_forgot_the_function() -> None:
    server = Server(enqueue=[FORGOTTEN, OK])

    accepted = server.run(plans(server).enqueue.many([job(1)]))

    assert accepted.ids == ("job-1",)
    assert server.names()[-3:] == ["enqueue", "FUNCTION", "enqueue"]
    first, second = calls(server)
    assert first == second


@pytest.mark.parametrize(
    "reply",
    [
        ReplyError("ERR unknown command 'FCALL', with args beginning with:"),
        ReplyError("NOPERM this user has no permissions to run the 'fcall' command"),
    ],
)
def test_a_client_uses_scripts_on_a_server_without_functions(reply: Exception) -> None:
    server = Server(
        enqueue=[reply, ReplyError("NOSCRIPT No matching script"), OK], handshake=[GREETING]
    )

    operations = plans(server)
    assert server.run(operations.enqueue.many([job(1)])).ids == ("job-1",)
    assert server.names()[-4:] == ["enqueue", "enqueue", "SCRIPT", "enqueue"]
    assert len(set(calls(server))) == 1

    server.run(operations.enqueue.many([job(2)]))
    assert server.names()[-1] == "enqueue"


@pytest.mark.parametrize(
    "reply",
    [
        ReplyError("OOM command not allowed when used memory > 'maxmemory'"),
        ReplyError("NOPERM this user has no permissions to run the 'function|load' command"),
    ],
)
def test_a_client_uses_scripts_on_a_server_that_refuses_to_load_functions(reply: Exception) -> None:
    """A full server loads no new library, and a user may lack the right to load one."""
    server = Server(
        enqueue=[FORGOTTEN, ReplyError("NOSCRIPT No matching script"), OK], FUNCTION=[reply]
    )

    assert server.run(plans(server).enqueue.many([job(1)])).ids == ("job-1",)

    assert server.names()[-5:] == ["enqueue", "FUNCTION", "enqueue", "SCRIPT", "enqueue"]


def test_a_call_refused_for_a_new_epoch_is_repeated_after_a_handshake() -> None:
    """The repetition has the same number."""
    server = Server(enqueue=[EPOCH, OK])

    server.run(plans(server).enqueue.many([job(1)]))

    assert server.names().count("handshake") == 2
    first, second = calls(server)
    assert first == second


@pytest.mark.parametrize(
    "trouble", [Lost("reset by peer"), Unsent("refused"), ReplyError("LOADING")]
)
def test_a_call_without_an_answer_is_repeated_with_the_same_number(trouble: Exception) -> None:
    """The server may have run the call. Under another number it would run the call twice."""
    server = Server(enqueue=[trouble, trouble, OK])

    server.run(plans(server).enqueue.many([job(1)]))

    assert len(calls(server)) == 3
    assert len(set(calls(server))) == 1
    assert server.slept > 0


def test_running_an_empty_list_of_calls_needs_no_server() -> None:
    """A worker without a claim has nothing to settle."""
    assert Server().run(plans(Server()).delivery.carry_out([])) == []


def test_an_unanswered_claim_is_repeated_even_if_the_worker_has_no_free_place_now() -> None:
    """If the server has run the claim, the repetition gets the answer with the claimed jobs. If not, it claims no job.

    The claim and its repetition have the same number.
    """

    def lose(_command: list[Any]) -> Lost:
        claim.args["limit"] = 0
        return Lost("cut")

    server = Server(claim=[lose, ["ok", "1 - 0 -"]])
    operations = plans(server)
    claim = claims.claim("q", "w-1", 5)

    server.run(operations.delivery.carry_out([claim]))

    first, second = server.sent("claim")
    assert (first["limit"], second["limit"]) == (5, 0)
    assert (first["slot"], first["number"]) == (second["slot"], second["number"])


def test_the_next_call_of_a_slot_has_the_next_number() -> None:
    server = Server(enqueue=[OK])
    operations = plans(server)

    for n in range(3):
        server.run(operations.enqueue.many([job(n)]))

    (slot,) = {slot for slot, _ in calls(server)}
    assert slot.startswith(operations.delivery.name)
    assert [number for _, number in calls(server)] == [1, 2, 3]


def test_each_call_in_a_pipeline_has_its_own_slot() -> None:
    server = Server(enqueue=[OK])
    operations = plans(server)

    server.run(
        operations.delivery.carry_out([operations.enqueue.chunk("q", [job(n)]) for n in range(3)])
    )

    assert len({slot for slot, _ in calls(server)}) == 3
    assert server.trips == 1


def test_only_calls_without_an_answer_are_repeated() -> None:
    server = Server(enqueue=[OK, Lost("cut"), OK, OK])
    operations = plans(server)

    server.run(
        operations.delivery.carry_out([operations.enqueue.chunk("q", [job(n)]) for n in range(3)])
    )

    assert [args["each"][0] for args in server.sent("enqueue")] == [
        "job-0",
        "job-1",
        "job-2",
        "job-1",
    ]


REFUSALS = [
    (["refused", "audit_backlog", "9", "8"], errors.AuditBacklogFull, "9 events"),
    (["refused", "elsewhere", "other"], errors.AuditElsewhere, "other"),
    (["refused", "layout", "99"], errors.LayoutMismatch, "layout 99"),
    (["refused", "stale_call"], errors.StaleCall, "too late"),
    (["refused", "arguments", "count"], errors.BadArguments, "arguments count"),
    (["refused"], errors.BadArguments, "bug"),
    (ReplyError("OOM command not allowed"), errors.QueueFull, "maxmemory"),
    (ReplyError("WRONGTYPE Operation"), errors.QueueDamaged, "doctor q --repair"),
    (ReplyError("NOAUTH Authentication required"), errors.ServerUnsuitable, "Authentication"),
    (ReplyError("ERR user_script:12: oops"), errors.QueueDamaged, "oops"),
]


@pytest.mark.parametrize(("reply", "kind", "words"), REFUSALS, ids=lambda each: str(each)[:30])
def test_a_refused_call_raises_a_typed_error(reply: Any, kind: type[Exception], words: str) -> None:
    server = Server(enqueue=[reply])

    with pytest.raises(kind, match=words):
        server.run(plans(server).enqueue.many([job(1)]))

    assert len(server.sent("enqueue")) == 1


def test_an_unreachable_server_causes_an_error_after_the_time_limit_of_the_client() -> None:
    server = Server(INFO=[Unsent("refused")])

    with pytest.raises(errors.ServerUnavailable, match=r"redis://test.*embedded://"):
        server.run(plans(server, patience=Patience(unsent=3)).enqueue.many([job(1)]))

    assert 3 < server.now < 5


def test_a_call_that_redis_may_have_run_is_repeated_for_a_longer_time_than_an_unsent_call() -> None:
    server = Server(enqueue=[Lost("cut"), Unsent("refused")])

    with pytest.raises(errors.OutcomeUnknown) as caught:
        server.run(plans(server, patience=Patience(unsent=3, unknown=600)).enqueue.many([job(1)]))

    assert caught.value.ids == ("job-1",)
    assert 600 < server.now < 605


@pytest.mark.parametrize("trouble", [Unsent("refused"), Lost("cut")])
def test_a_repeated_call_raises_outcome_unknown_if_the_handshake_before_it_gets_no_answer(
    trouble: Exception,
) -> None:
    """The error ServerUnavailable would be wrong: it says that the call was not sent, so that no job exists."""
    server = Server(enqueue=[Lost("cut"), EPOCH], handshake=[GREETING, trouble])

    with pytest.raises(errors.OutcomeUnknown) as caught:
        server.run(plans(server, patience=Patience(unsent=3, unknown=60)).enqueue.many([job(1)]))

    assert caught.value.ids == ("job-1",)
    assert 60 < server.now < 65


def test_a_refused_call_whose_new_handshake_cannot_be_sent_raises_server_unavailable() -> None:
    server = Server(enqueue=[EPOCH], handshake=[GREETING, Unsent("refused")])

    with pytest.raises(errors.ServerUnavailable):
        server.run(plans(server, patience=Patience(unsent=3, unknown=60)).enqueue.many([job(1)]))

    assert 3 < server.now < 5


def test_two_concurrent_calls_both_use_scripts_if_the_server_refuses_functions() -> None:
    """Two threads share one Operations object, and the server refuses the functions of both. The second refusal must
    not raise an error."""
    server = Server()
    operations = plans(server)
    server.run(operations.delivery.handshake("q"))
    both = [
        operations.delivery.carry_out([operations.enqueue.chunk("q", [job(n)])]) for n in (1, 2)
    ]
    full = ReplyError("OOM command not allowed when used memory > 'maxmemory'")
    for reply in (None, [FORGOTTEN], [full]):
        steps = [plan.send(reply) for plan in both]

    assert [isinstance(s, Send) and s.commands[0][0] for s in steps] == ["EVALSHA", "EVALSHA"]


@pytest.mark.parametrize(
    "reply", [ReplyError("NOPERM no permission to run script|load"), Unsent("")]
)
def test_a_call_whose_script_cannot_be_loaded_ends_in_an_error(reply: Exception) -> None:
    """The client must not try to load the script for ever."""
    forgotten = [FORGOTTEN, ReplyError("NOSCRIPT No matching script")]
    server = Server(enqueue=forgotten, FUNCTION=[ReplyError("NOPERM no")], SCRIPT=[reply])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_a_client_that_may_not_load_functions_calls_functions_that_others_loaded() -> None:
    """The client may not load scripts either. It tries to call the functions at each call, since another client may
    have loaded them meanwhile."""
    forgotten = [FORGOTTEN, ReplyError("NOSCRIPT No matching script")]
    refusal = [ReplyError("NOPERM no")]
    server = Server(enqueue=forgotten, FUNCTION=refusal, SCRIPT=refusal)
    operations = plans(server)
    with pytest.raises(errors.ServerUnsuitable):
        server.run(operations.enqueue.many([job(1)]))

    step = operations.enqueue.many([job(2)]).send(None)

    assert isinstance(step, Send)
    assert step.commands[0][0] == "FCALL"


def test_a_server_that_is_unreachable_when_functions_are_loaded_causes_an_error() -> None:
    server = Server(enqueue=[FORGOTTEN], FUNCTION=[Unsent("")])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_a_call_that_is_refused_for_its_epoch_every_time_ends_in_an_error() -> None:
    server = Server(enqueue=[EPOCH])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_an_old_server_is_refused() -> None:
    server = Server(INFO=["redis_version:6.2.14"])

    with pytest.raises(errors.ServerUnsuitable, match=r"6\.2\.14"):
        server.run(plans(server).enqueue.many([job(1)]))


def test_no_error_message_contains_a_password() -> None:
    operations = Operations(Delivery(url="redis://me:secret@host:6379/0"))

    assert operations.delivery.asking.url == "redis://me:***@host:6379/0"


def test_reads_are_repeated_while_a_node_of_a_cluster_is_down() -> None:
    """The read is repeated even if another command of the same exchange gets another error."""
    down, odd = ReplyError("CLUSTERDOWN The cluster is down"), ReplyError("ERR whatever follows")
    server = Server(HGET=[down, "1"], HLEN=[odd, 2])

    asked = plans(server).delivery.ask([["HGET", "k", "f"], ["HLEN", "k"]])

    assert server.run(asked) == ["1", 2]
