"""What the plans do when things go wrong, played against a scripted server."""

from __future__ import annotations

import json
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from rq_core import errors
from rq_core.model.job import NewJob, profile
from rq_core.model.machine import Priority
from rq_core.protocol import claims, delivery
from rq_core.protocol.delivery import Delivery, Slot
from rq_core.protocol.enqueue import ENQUEUE_CHUNK as CHUNK
from rq_core.protocol.enqueue import Accepted
from rq_core.protocol.operations import Operations
from rq_core.protocol.plan import Lost, Patience, Pause, Plan, ReplyError, Send, T, Unsent
from rq_core.scripts.script import Script, function
from tests.kit.forked import forked

OK = ["ok"]
EPOCH = ["epoch"]
GREETING = ["ok", "7", "1000", "30000", "0", "off", "-", "-"]


class Server:
    """Answers commands by a script of its own: per name, the replies in order; the last one stays.

    A reply that is a function is called with the command.
    """

    def __init__(self, **replies: Any) -> None:
        self.replies: dict[str, deque[Any]] = {
            "INFO": deque(["redis_version:7.2.0\r\nmaxmemory_policy:noeviction"]),
            "SADD": deque([1]),
            "FUNCTION": deque(["rq_core"]),
            "SCRIPT": deque(["sha"]),
            "handshake": deque([GREETING]),
            **{name: deque(given) for name, given in replies.items()},
        }
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.trips = 0
        self.lets_prepare = True
        self.slept = 0.0
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def exchange(
        self, commands: Sequence[Sequence[Any]], meanwhile: Callable[[], None] | None = None
    ) -> list[Any]:
        self.trips += 1
        replies = [self._answer(list(command)) for command in commands]
        if meanwhile is not None and self.lets_prepare:
            meanwhile()
        return replies

    def _answer(self, command: list[Any]) -> Any:
        name, args = _read(command)
        self.seen.append((name, args))
        replies = self.replies[name]
        reply = replies.popleft() if len(replies) > 1 else replies[0]
        return reply(command) if callable(reply) else reply

    def run(self, plan: Plan[T]) -> T:
        reply: Any = None
        for _ in range(2_000):
            try:
                step = plan.send(reply)
            except StopIteration as end:
                value: T = end.value
                return value
            if isinstance(step, Send):
                reply = self.exchange(*step)
            else:
                assert isinstance(step, Pause)
                self.slept += step.seconds
                self.now += step.seconds
                reply = None
        raise AssertionError(f"the plan does not end; it sent {self.names()[-6:]}")

    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    def sent(self, name: str) -> list[dict[str, Any]]:
        return [args for seen, args in self.seen if seen == name]


_KNOWN: dict[str, Script] = {
    verb: function(name)
    for name in ("enqueue", "handshake", "claim", "complete")
    for verb in (function(name).function, function(name).sha)
}


def _read(command: list[Any]) -> tuple[str, dict[str, Any]]:
    if command[0] not in {"FCALL", "EVALSHA"}:
        return str(command[0]), {}
    found = _KNOWN[command[1]]
    values = command[3 + command[2] :]
    args = dict(zip(found.args, values, strict=False))
    args["each"] = values[len(found.args) :]
    return found.name, args


def plans(server: Server, **options: Any) -> Operations:
    return Operations(Delivery(url="redis://test", clock=server.clock, **options))


def job(number: int, queue: str = "q") -> NewJob:
    return NewJob(f"job-{number}", queue, profile("task"), "{}")


def calls(server: Server, name: str = "enqueue") -> list[tuple[str, int]]:
    """Slot and number of each call of a script."""
    return [(args["slot"], args["number"]) for args in server.sent(name)]


FORGOTTEN = ReplyError("ERR Function not found")


def test_a_forgotten_function_is_loaded_and_sent_again_with_the_same_number() -> None:
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
def test_a_server_that_knows_no_functions_gets_scripts(reply: Exception) -> None:
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
def test_a_server_that_takes_no_functions_gets_scripts(reply: Exception) -> None:
    """A full server takes no new library, but it has to be able to drain itself."""
    server = Server(
        enqueue=[FORGOTTEN, ReplyError("NOSCRIPT No matching script"), OK], FUNCTION=[reply]
    )

    assert server.run(plans(server).enqueue.many([job(1)])).ids == ("job-1",)

    assert server.names()[-5:] == ["enqueue", "FUNCTION", "enqueue", "SCRIPT", "enqueue"]


def test_a_new_epoch_is_met_with_a_handshake_and_the_same_number() -> None:
    server = Server(enqueue=[EPOCH, OK])

    server.run(plans(server).enqueue.many([job(1)]))

    assert server.names().count("handshake") == 2
    first, second = calls(server)
    assert first == second


@pytest.mark.parametrize(
    "trouble", [Lost("reset by peer"), Unsent("refused"), ReplyError("LOADING")]
)
def test_what_got_no_answer_is_sent_again_with_the_same_number(trouble: Exception) -> None:
    """The server may have carried it out: another number would carry it out twice."""
    server = Server(enqueue=[trouble, trouble, OK])

    server.run(plans(server).enqueue.many([job(1)]))

    assert len(calls(server)) == 3
    assert len(set(calls(server))) == 1
    assert server.slept > 0


def test_no_calls_need_no_server() -> None:
    """A worker whose claim came back empty may have nothing to settle."""
    assert Server().run(plans(Server()).delivery.carry_out([])) == []


def test_what_is_no_longer_wanted_is_asked_for_under_the_same_number() -> None:
    """A claim that may have been carried out must be heard of; one that was not takes nothing more."""

    def lose(_command: list[Any]) -> Lost:
        claim.args["limit"] = 0
        return Lost("cut")

    server = Server(claim=[lose, ["ok", 1, "-", 0, "-"]])
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


def test_calls_in_one_pipeline_have_slots_of_their_own() -> None:
    server = Server(enqueue=[OK])
    operations = plans(server)

    server.run(
        operations.delivery.carry_out([operations.enqueue.chunk("q", [job(n)]) for n in range(3)])
    )

    assert len({slot for slot, _ in calls(server)}) == 3
    assert server.trips == 1


def test_only_what_got_no_answer_is_sent_again() -> None:
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
def test_refused_answers_are_typed_errors(reply: Any, kind: type[Exception], words: str) -> None:
    server = Server(enqueue=[reply])

    with pytest.raises(kind, match=words):
        server.run(plans(server).enqueue.many([job(1)]))

    assert len(server.sent("enqueue")) == 1


def test_a_server_that_cannot_be_reached_is_given_up_after_a_while() -> None:
    server = Server(INFO=[Unsent("refused")])

    with pytest.raises(errors.ServerUnavailable, match=r"redis://test.*embedded://"):
        server.run(plans(server, patience=Patience(unsent=3)).enqueue.many([job(1)]))

    assert 3 < server.now < 5


def test_a_call_that_may_have_been_carried_out_is_not_given_up_so_soon() -> None:
    server = Server(enqueue=[Lost("cut"), Unsent("refused")])

    with pytest.raises(errors.OutcomeUnknown) as caught:
        server.run(plans(server, patience=Patience(unsent=3, unknown=600)).enqueue.many([job(1)]))

    assert caught.value.ids == ("job-1",)
    assert 600 < server.now < 605


def test_two_calls_that_find_no_functions_at_once_both_go_on_with_scripts() -> None:
    """Threads share an Operations: the second to be refused must not take the first one's way out for its end."""
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
def test_a_script_that_cannot_be_loaded_ends_in_an_error(reply: Exception) -> None:
    """Without a limit the client would ask for ever, without a pause."""
    forgotten = [FORGOTTEN, ReplyError("NOSCRIPT No matching script")]
    server = Server(enqueue=forgotten, FUNCTION=[ReplyError("NOPERM no")], SCRIPT=[reply])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_who_may_load_nothing_goes_on_with_the_functions_that_others_loaded() -> None:
    """It stayed with scripts, of which it may load none either, when the functions were there again."""
    forgotten = [FORGOTTEN, ReplyError("NOSCRIPT No matching script")]
    refusal = [ReplyError("NOPERM no")]
    server = Server(enqueue=forgotten, FUNCTION=refusal, SCRIPT=refusal)
    operations = plans(server)
    with pytest.raises(errors.ServerUnsuitable):
        server.run(operations.enqueue.many([job(1)]))

    step = operations.enqueue.many([job(2)]).send(None)

    assert isinstance(step, Send)
    assert step.commands[0][0] == "FCALL"


def test_a_server_that_cannot_be_reached_for_loading_ends_in_an_error() -> None:
    server = Server(enqueue=[FORGOTTEN], FUNCTION=[Unsent("")])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_an_epoch_that_never_holds_ends_in_an_error() -> None:
    server = Server(enqueue=[EPOCH])

    with pytest.raises(errors.ServerError):
        server.run(plans(server).enqueue.many([job(1)]))


def test_an_old_server_is_refused() -> None:
    server = Server(INFO=["redis_version:6.2.14"])

    with pytest.raises(errors.ServerUnsuitable, match=r"6\.2\.14"):
        server.run(plans(server).enqueue.many([job(1)]))


def test_an_enqueue_that_stops_half_way_says_what_was_accepted() -> None:
    server = Server(enqueue=[OK, ReplyError("OOM full")])

    with pytest.raises(errors.QueueFull) as caught:
        server.run(plans(server).enqueue.many(job(n) for n in range(CHUNK + 10)))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]


def test_a_generator_that_fails_half_way_says_what_was_accepted() -> None:
    server = Server(enqueue=[OK])

    def jobs() -> Any:
        yield from (job(n) for n in range(CHUNK + 10))
        raise errors.ArgumentsInvalid(task="t", problems="x: is required")

    with pytest.raises(errors.ArgumentsInvalid) as caught:
        server.run(plans(server).enqueue.many(jobs()))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Unchangeable(Exception):
    """As people write them."""

    number: int


def test_a_producers_error_that_cannot_carry_what_was_accepted_comes_through() -> None:
    def jobs() -> Any:
        yield from (job(n) for n in range(CHUNK + 10))
        raise Unchangeable(7)

    server = Server(enqueue=[OK])

    with pytest.raises(Unchangeable):
        server.run(plans(server).enqueue.many(jobs()))


@pytest.mark.parametrize("lets_prepare", [True, False])
def test_a_generator_is_asked_for_one_chunk_at_a_time(lets_prepare: bool) -> None:
    asked = 0
    at_call: list[int] = []

    def jobs() -> Any:
        nonlocal asked
        for n in range(2 * CHUNK + 10):
            asked += 1
            yield job(n)

    def answer(_: Any) -> list[str]:
        at_call.append(asked)
        return OK

    server = Server(enqueue=[answer])
    server.lets_prepare = lets_prepare

    server.run(plans(server).enqueue.many(jobs()))

    assert at_call == [CHUNK, 2 * CHUNK, 2 * CHUNK + 10]


def test_the_next_chunk_is_made_while_one_is_on_its_way() -> None:
    asked = 0
    after_sending: list[int] = []

    def jobs() -> Any:
        nonlocal asked
        for n in range(2 * CHUNK + 10):
            asked += 1
            yield job(n)

    class Slow(Server):
        def exchange(self, commands: Any, meanwhile: Any = None) -> list[Any]:
            replies = super().exchange(commands, meanwhile)
            if "enqueue" in {_read(list(command))[0] for command in commands}:
                after_sending.append(asked)
            return replies

    server = Slow(enqueue=[OK])

    server.run(plans(server).enqueue.many(jobs()))

    assert after_sending == [2 * CHUNK, 2 * CHUNK + 10, 2 * CHUNK + 10]


def test_a_generator_that_fails_while_a_chunk_is_on_its_way_hears_of_that_chunk() -> None:
    def jobs() -> Any:
        yield from map(job, range(CHUNK + 10))
        raise errors.InvalidOption(option="x", value=1, must="be another")

    server = Server(enqueue=[OK])

    with pytest.raises(errors.InvalidOption) as caught:
        server.run(plans(server).enqueue.many(jobs()))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]
    assert len(server.sent("enqueue")) == 1


def test_what_was_made_ready_stays_here_when_the_chunk_before_it_is_refused() -> None:
    server = Server(enqueue=[OK, ["refused", "audit_backlog", "9", "8"]])

    with pytest.raises(errors.AuditBacklogFull) as caught:
        server.run(plans(server).enqueue.many(map(job, range(3 * CHUNK + 10))))

    assert len(caught.value.accepted.ids) == CHUNK  # type: ignore[attr-defined]
    assert len(server.sent("enqueue")) == 2


def test_what_many_jobs_have_in_common_is_said_once() -> None:
    server = Server(enqueue=[OK])
    mixed = [
        NewJob(f"job-{n}", "q", profile("task", priority), "{}", delay_ms)
        for n in range(80)
        for priority, delay_ms in [(Priority.LOW, 0), (Priority.HIGH, 0), (Priority.LOW, 5)]
    ]

    server.run(plans(server).enqueue.many(mixed))

    (sent,) = server.sent("enqueue")
    assert [kind[:2] for kind in json.loads(sent["kinds"])] == [[3, 0], [1, 0], [3, 5]]
    assert sent["each"][1::5] == ["1", "2", "3"] * 80


def test_jobs_of_several_queues_keep_their_order() -> None:
    server = Server(enqueue=[OK])

    accepted = server.run(plans(server).enqueue.many([job(1, "a"), job(2, "b"), job(3, "a")]))

    assert [args["each"][::5] for args in server.sent("enqueue")] == [["job-1", "job-3"], ["job-2"]]
    assert accepted.ids == ("job-1", "job-3", "job-2")


@pytest.mark.parametrize(
    ("refused", "ids", "duplicates"),
    [
        ([], ("job-1", "job-2", "job-1"), ()),
        ([2], ("job-1", "job-1"), ("job-2",)),
        ([3], ("job-1", "job-2"), ("job-1",)),
        ([1, 3], ("job-2",), ("job-1", "job-1")),
    ],
)
def test_duplicates_are_told_from_what_was_accepted(
    refused: list[int], ids: tuple[str, ...], duplicates: tuple[str, ...]
) -> None:
    answer = [fact for place in refused for fact in (str(place), "duplicate", "-")]
    server = Server(enqueue=[["ok", *answer]])

    accepted = server.run(plans(server).enqueue.many([job(1), job(2), job(1)]))

    assert (accepted.ids, accepted.duplicates) == (ids, duplicates)


def test_what_was_dropped_or_rejected_is_told_with_the_scope() -> None:
    answer = ["1", "discarded", "task=t", "3", "rejected", "2+task=t"]
    server = Server(enqueue=[["ok", *answer]])

    accepted = server.run(plans(server).enqueue.many([job(1), job(2), job(3)]))

    assert accepted == Accepted(("job-2",), (), (("job-1", "task=t"),), (("job-3", "2+task=t"),))
    assert accepted.others() == {
        "job-1": Accepted((), (), (("job-1", "task=t"),)),
        "job-3": Accepted((), (), (), (("job-3", "2+task=t"),)),
    }


def test_a_forked_child_does_not_go_on_with_its_parents_slots() -> None:
    """Both would use the same numbers, and take each other's answers for their own."""
    server = Server(enqueue=[OK])
    operations = plans(server)
    server.run(operations.enqueue.many([job(1)]))

    def in_child() -> str:
        server.run(operations.enqueue.many([job(2)]))
        return calls(server)[-1][0]

    of_child = forked(in_child)
    server.run(operations.enqueue.many([job(3)]))

    assert of_child != calls(server)[0][0]
    assert calls(server)[-1] == (calls(server)[0][0], 2)


def test_threads_of_a_forked_child_share_no_slot_with_its_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who came while another thread let go of the parent's slots took one of them, and its answers."""
    operations = plans(Server())
    of_parent = operations.delivery._take_slot("q", "enqueue")
    operations.delivery._free["q", "enqueue"].append(of_parent)
    operations.delivery._pid = -1
    taken: list[Slot] = []
    other = threading.Thread(
        target=lambda: taken.append(operations.delivery._take_slot("q", "enqueue"))
    )

    def half_way(kind: type[list[Slot]]) -> defaultdict[Any, list[Slot]]:
        if other.ident is None:
            other.start()
            other.join()
        return defaultdict(kind)

    monkeypatch.setattr(delivery, "defaultdict", half_way)
    taken.append(operations.delivery._take_slot("q", "enqueue"))
    other.join()

    assert len({slot.name for slot in (of_parent, *taken)}) == 3


def test_a_slot_whose_call_was_broken_off_goes_on_with_a_higher_number() -> None:
    """The call may still arrive; after a later one of its slot it is refused."""
    server = Server(enqueue=[OK])
    operations = plans(server)
    server.run(operations.delivery.handshake("q"))
    plan = operations.enqueue.many([job(1)])
    step = next(plan)
    assert isinstance(step, Send)
    server.exchange(step.commands)
    plan.close()

    server.run(operations.enqueue.many([job(2)]))

    first, second = calls(server)
    assert (first[0], first[1] + 1) == second


def test_a_password_is_in_no_message() -> None:
    operations = Operations(Delivery(url="redis://me:secret@host:6379/0"))

    assert operations.delivery.asking.url == "redis://me:***@host:6379/0"
