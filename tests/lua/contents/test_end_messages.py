"""Messages about ended jobs to waiting clients. A message is sent after the end is written.

tests/lua/test_matrix.py checks that each kind of end sends one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.model.settings import LISTEN_MS
from rq_core.protocol.calls import claims
from tests.kit.consistency import assert_consistent
from tests.kit.listener import Listener
from tests.kit.seed import WORKER, Seed
from tests.kit.servers import RedisServer


def listens(seed: Seed) -> None:
    seed.client.run(seed.calls.endings.listen(seed.queue))


def test_a_call_sends_the_ends_of_all_its_jobs_in_one_message(
    seed: Seed, listener: Listener
) -> None:
    seed.enqueue("a", "b", "c")
    held = seed.claim().jobs
    listener.listen(seed)

    seed.turn(*held)

    assert ["a", "b", "c"] == listener.told()


def test_no_message_is_sent_for_a_job_that_has_not_ended(seed: Seed, listener: Listener) -> None:
    seed.enqueue("retried", "rolled-back", "edited", delay_ms=0)
    listener.listen(seed)
    retried, rolled_back, edited = seed.claim().jobs
    seed.fail(retried)
    seed.rollback(rolled_back, edited)
    seed.edit("edited", priority="high")

    assert [] == listener.told()


def test_no_message_is_sent_if_no_client_waits(seed: Seed, listener: Listener) -> None:
    seed.enqueue("a", "b")
    first, second = seed.claim().jobs
    listener.listen(seed.of("other"))
    listener.listen(seed)
    seed.control.hdel(seed.keys("meta"), "awaited", "v")
    seed.complete(first)
    told = listener.told()
    listens(seed)
    seed.complete(second)

    assert [] == told
    assert ["b"] == listener.told()


def test_messages_are_sent_for_a_minute_after_the_last_listen_call(
    seed: Seed, listener: Listener
) -> None:
    seed.enqueue("a", "b", "c")
    held = seed.claim().jobs
    listener.listen(seed)
    seed.advance(LISTEN_MS - 1)
    seed.cancel("x")
    listens(seed)
    seed.advance(1)
    seed.enqueue("d")
    seed.cancel("d")
    seed.advance(LISTEN_MS - 1)
    seed.enqueue("e")
    seed.cancel("e")

    assert 3 == len(held)
    assert ["d"] == listener.told()


def test_a_second_client_that_listens_does_not_make_other_clients_read_facts_about_the_queue_again(
    seed: Seed,
) -> None:
    """Each new version makes every client's next call read the facts about the queue again."""
    seed.enqueue("a")
    listens(seed)
    version = seed.meta("v")
    listens(seed)
    seed.advance(LISTEN_MS // 2)
    listens(seed)
    same = seed.meta("v")
    seed.advance(1)
    listens(seed)

    assert version == same
    assert seed.meta("v") != same
    assert str(seed.now + LISTEN_MS) == seed.meta("awaited")


def test_messages_about_ends_stop_a_minute_after_the_last_listen_call_though_the_clock_went_back(
    seed: Seed,
) -> None:
    """Messages stop a minute after the last listen call, by the clock of that call."""
    seed.enqueue("a")
    listens(seed)
    seed.clock.set(seed.now - 86_400_000)
    listens(seed)

    assert str(seed.now + LISTEN_MS) == seed.meta("awaited")


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_a_refused_settlement_sends_no_message(seed: Seed, listener: Listener, many: bool) -> None:
    claim = seed.running("a")
    other = [("b", claim.fence)] if many else []
    listener.listen(seed)

    seed.complete((claim.id, "1-1"), *other)
    seed.fail((claim.id, "1-1"), verdict="final")
    seed.turn((claim.id, "1-1"), limit=0)

    assert [] == listener.told()


@pytest.mark.damaged
def test_a_call_that_fails_before_its_first_write_sends_no_message(
    seed: Seed, listener: Listener
) -> None:
    """The call would have ended a job. It fails first, so the job has not ended."""
    seed.enqueue("a", "b")
    seed.dead("c")
    (held,) = seed.claim(1).jobs
    listener.listen(seed)
    for script in (seed.cancel, seed.prune):
        # What it remembers of the queue lets it get as far as its first write.
        script("unknown")
    seed.complete(("unknown", "1-1"))
    seed.fail(("unknown", "1-1"))
    seed.control.delete(seed.keys("outbox"))
    slot = {"slot": "s", "number": 1}
    for name, args, each in (
        ("cancel", {**slot, "by": "x", "why": "", "only": ""}, [("b", "")]),
        ("prune", {**slot, "by": "x", "why": ""}, [("c",)]),
        ("complete", {**slot, "worker": WORKER}, [(held.id, held.fence)]),
        (
            "fail",
            {**slot, "worker": WORKER},
            [(held.id, held.fence, "final", 0, "gave_up", "null", "", "")],
        ),
    ):
        made = seed.calls.delivery._script(name)
        with pytest.raises(Exception, match="EPOCH"):
            seed.control.execute_command(*made.filled(made.head(seed.keys), args, each))

    assert [] == listener.told()


def test_a_worker_without_rights_to_the_channel_causes_no_denials_in_the_acl_log(
    seed: Seed, listener: Listener
) -> None:
    """Redis would write each denied SPUBLISH into the ACL LOG."""
    seed.enqueue("a", "b")
    first, second = seed.claim().jobs
    listener.listen(seed)
    seed.control.execute_command(
        "ACL", "SETUSER", "deaf", "on", ">x", "+@all", "~*", "resetchannels"
    )
    seed.control.execute_command("ACL", "LOG", "RESET")
    port = seed.control.connection_pool.connection_kwargs["port"]
    try:
        with Client(f"redis://deaf:x@127.0.0.1:{port}/0", calls=seed.calls) as deaf:
            assert {} == deaf.run(claims.complete(seed.queue, WORKER, [(first.id, first.fence)]))
            told = listener.told()
            log = seed.control.execute_command("ACL", "LOG")
    finally:
        seed.control.execute_command("ACL", "DELUSER", "deaf")
    seed.complete(second)

    assert ([], []) == (told, log)
    assert ["b"] == listener.told()


def test_a_listen_call_for_an_invalid_name_or_as_the_first_call_to_a_queue_creates_no_job(
    seed: Seed,
) -> None:
    """The listen call is the first call of this client to the queue."""
    with pytest.raises(RqCoreError):
        seed.client.run(seed.calls.endings.listen("not a name"))
    listens(seed)

    assert {} == seed.snapshot()["jobs"]


def test_a_job_can_end_on_a_server_without_the_command_spublish(
    start_redis: Callable[..., RedisServer], tmp_path: Path
) -> None:
    """The call must not fail after it has appended its event."""
    settings = tmp_path / "renamed.conf"
    settings.write_text("rename-command SPUBLISH hidden\n")
    with Seed(start_redis(include=str(settings)).url) as seed:
        seed.enqueue("a", "b")
        held = seed.claim().jobs
        listens(seed)

        refused = seed.complete(*held)

        assert {} == refused
        assert {} == seed.snapshot()["state"]
        assert_consistent(seed.snapshot())
