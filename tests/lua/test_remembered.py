"""Facts about a queue that Redis functions remember. If a fact is wrong, the first call that could do harm notices it.

The tests promote, resynchronize, restart and empty real servers. Only the tests advance the clock, so no fact becomes
too old by itself.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rq_core.model.keys import queue_keys
from rq_core.scripts.script import Script
from tests.kit.clock import CLOCK_KEY, timed
from tests.kit.seed import START_MS, Seed
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

KEYS = queue_keys("q")
KINDS = '[[2,0,"task=t","\\"t\\",\\"normal\\",3,3,\\"",""]]'
numbers = itertools.count(1)


class Node:
    """A server, and calls of its functions in the form of any client."""

    def __init__(self, server: RedisServer, scripts: Callable[[str], Script] = timed) -> None:
        self.server = server
        self.control = redis.Redis.from_url(server.url, decode_responses=True)
        self._scripts = scripts

    def send(self, *command: Any) -> Any:
        return self.control.execute_command(*command)  # type: ignore[no-untyped-call]

    def call(self, name: str, each: list[tuple[Any, ...]], **args: Any) -> Any:
        """Make a call, and return the words of its reply. For the error EPOCH, return ``epoch``."""
        script = self._scripts(name)
        try:
            return self.send(*script.command(KEYS, each, **args))
        except redis.ResponseError as error:
            if str(error).startswith("EPOCH"):
                return ["epoch"]
            if not any(text in str(error) for text in ("Function not found", "No matching script")):
                raise
        self.send(*script.loading)
        return self.send(*script.command(KEYS, each, **args))

    def enqueue(self) -> str:
        """Return the first word of the reply to an enqueue."""
        number = next(numbers)
        record = (f"j-{number}", "1", "d", "", "{}")
        slot = f"c-{number}"
        args = {"slot": slot, "number": 1, "by": "c", "spec_max": 0, "kinds": KINDS}
        return str(self.call("enqueue", [record], **args)[0])

    def claim(self) -> list[str]:
        """Return the words of the reply to a claim."""
        args = {"worker": "w", "limit": 9, "bytes_max": 10**6, "sweep_max": 9}
        found: list[str] = self.call("claim", [], slot=f"w-{next(numbers)}", number=1, **args)
        return found

    def warm(self) -> None:
        """Let the functions remember the queue. This takes two claims, since the first one changes the facts."""
        for _ in range(2):
            assert (self.enqueue(), self.claim()[0]) == ("ok", "ok")

    def handshake(self) -> str:
        """Make a handshake, and return why it began an epoch, or `-` if it began none."""
        return str(self.call("handshake", [], by="c", floor=0)[-1])

    def set_clock(self, ms: int) -> None:
        self.control.set(CLOCK_KEY, ms)

    def follow(self, primary: "Node") -> None:
        """Become a replica of this primary, and wait until it has all data."""
        self.control.replicaof("127.0.0.1", str(primary.server.port))

        def is_level() -> bool:
            ours, theirs = self.info(), primary.info()
            offset = theirs["master_repl_offset"]
            return bool(ours["master_link_status"] == "up" and ours["slave_repl_offset"] == offset)

        wait_until(is_level, "the replica has all", timeout=20)

    def promote(self) -> None:
        self.control.replicaof("NO", "ONE")

    def info(self, section: str = "replication") -> dict[str, Any]:
        found: dict[str, Any] = self.control.info(section)
        return found


@pytest.fixture
def start(start_redis: Callable[..., RedisServer]) -> Iterator[Callable[..., Node]]:
    nodes = []

    def one(scripts: Callable[[str], Script] = timed, **options: str) -> Node:
        nodes.append(Node(start_redis(**options), scripts))
        return nodes[-1]

    yield one
    for node in nodes:
        node.control.close()


@pytest.fixture
def first(start: Callable[..., Node]) -> Node:
    """Return a server with a queue, about which its functions already remember facts."""
    node = start(repl_diskless_sync_delay="0")
    begin(node)
    return node


def begin(node: Node) -> None:
    node.set_clock(START_MS)
    assert node.handshake() == "created"
    node.warm()


@pytest.fixture
def second(start: Callable[..., Node], first: Node) -> Node:
    """Return a replica with all data. Clients used the queue while the replica was attached."""
    node = start(repl_diskless_sync_delay="0")
    node.follow(first)
    first.set_clock(START_MS + 1_000)
    assert (first.enqueue(), first.handshake()) == ("epoch", "-")
    first.warm()
    node.follow(first)
    return node


def test_a_promoted_replica_refuses_calls_until_a_handshake_has_begun_a_new_epoch(
    second: Node,
) -> None:
    second.promote()

    assert (second.enqueue(), second.claim()) == ("epoch", ["epoch"])
    assert (second.handshake(), second.enqueue()) == ("replid_changed", "ok")


@pytest.mark.slow
def test_an_old_primary_that_accepted_writes_after_a_failover_begins_a_new_epoch_once_it_is_primary_again(
    first: Node, second: Node
) -> None:
    """The clients of the old primary did not learn of the failover. Their writes are lost when it follows the new
    primary."""
    second.promote()
    assert (second.handshake(), second.enqueue(), first.enqueue()) == ("replid_changed", "ok", "ok")
    first.follow(second)
    assert second.info("stats")["sync_full"] == 1

    first.promote()

    assert (first.enqueue(), first.claim()) == ("epoch", ["epoch"])
    assert (first.handshake(), first.enqueue()) == ("replid_changed", "ok")


def test_an_old_primary_that_followed_the_new_primary_begins_a_new_epoch_once_it_is_primary_again(
    first: Node, second: Node
) -> None:
    """The old primary wrote nothing after the failover. It gets only the later changes, and its functions remember old
    facts."""
    second.promote()
    assert (second.handshake(), second.enqueue()) == ("replid_changed", "ok")
    first.follow(second)
    stats = second.info("stats")
    assert (stats["sync_full"], stats["sync_partial_ok"]) == (0, 1)

    first.promote()

    assert (first.enqueue(), first.claim()) == ("epoch", ["epoch"])
    assert (first.handshake(), first.enqueue()) == ("replid_changed", "ok")


def test_a_former_primary_that_returns_without_new_writes_begins_a_new_epoch_within_a_second(
    first: Node, second: Node
) -> None:
    """No client wrote after the failover, so no data are lost. But the server looks like one that has lost data."""
    second.promote()
    first.follow(second)
    first.promote()

    assert first.enqueue() == "ok"
    first.set_clock(START_MS + 2_000)
    assert (first.enqueue(), first.handshake(), first.enqueue()) == (
        "epoch",
        "replid_changed",
        "ok",
    )


def test_a_server_that_was_restarted_from_old_files_refuses_calls_until_it_has_begun_a_new_epoch(
    start: Callable[..., Node],
) -> None:
    node = start(save="3600 1")
    begin(node)
    node.control.save()
    assert node.enqueue() == "ok"

    node.server.kill()
    node.server.start()

    assert (node.enqueue(), node.handshake(), node.enqueue()) == ("epoch", "replid_changed", "ok")


def test_functions_on_an_emptied_server_remember_nothing_of_the_old_queue(first: Node) -> None:
    """The new queue begins in the same millisecond as the old queue did, with the same epoch."""
    args = {"slot": "s", "number": 1, "by": "c", "why": ""}
    assert first.call("configure", [("paused", 1)], **args)[0] == "ok"
    assert (first.enqueue(), len(first.claim())) == ("ok", 2)
    epoch = first.control.hget(KEYS("meta"), "epoch")

    first.control.flushall()
    first.set_clock(START_MS)

    assert (first.enqueue(), first.claim()) == ("epoch", ["epoch"])
    assert (first.handshake(), first.enqueue()) == ("created", "ok")
    assert epoch == first.control.hget(KEYS("meta"), "epoch")
    # Its facts change as often as those of the queue before.
    for number, lease_ms in (1, 5_000), (2, 6_000):
        args["number"] = number
        assert first.call("configure", [("lease_ms", lease_ms)], **args)[0] == "ok"
    assert len(first.claim()) > 2


@pytest.mark.parametrize("command", [("FUNCTION", "FLUSH"), ("SCRIPT", "FLUSH")])
def test_reloading_functions_makes_them_forget_a_queue_but_flushing_scripts_does_not(
    first: Node, command: tuple[str, str]
) -> None:
    first.send(*command)
    first.send("DEBUG", "CHANGE-REPL-ID")

    expected = "epoch" if command[0] == "FUNCTION" else "ok"
    assert first.enqueue() == expected


def test_the_loss_of_the_outbox_is_noticed_at_the_next_call_that_appends_an_event(
    first: Node,
) -> None:
    first.control.delete(KEYS("outbox"))

    assert (first.enqueue(), first.control.exists(KEYS("outbox"))) == ("epoch", 0)
    assert (first.handshake(), first.enqueue()) == ("outbox_lost", "ok")


def test_a_setting_that_was_written_into_redis_by_hand_is_noticed_within_a_second(
    first: Node,
) -> None:
    first.control.hset(KEYS("meta"), "paused", 1)
    first.set_clock(START_MS + 1_000)
    first.enqueue()

    assert len(first.claim()) == 2


def test_a_change_that_one_call_makes_is_visible_to_the_next_call_of_any_script(
    first: Node,
) -> None:
    args = {"slot": "s", "by": "c", "why": ""}
    first.call("configure", [("paused", 1)], number=1, **args)
    first.enqueue()
    assert len(first.claim()) == 2
    first.call("configure", [("paused", 0)], number=2, **args)
    assert len(first.claim()) > 2


# The sweep.


def test_a_lease_expires_on_time_while_workers_claim_constantly(seed: Seed) -> None:
    """Functions remember the earliest expiry of all leases. A claim after this time must examine the leases."""
    seed.configure(lease_ms=300)
    seed.enqueue("a")
    claim = seed.claim_one("a")
    for _ in range(3):
        seed.advance(100)
        seed.extend([claim])
    seed.claim()
    for _ in range(7):
        seed.advance(40)
        assert seed.claim(worker="w-2").jobs == ()
    seed.advance(20)

    assert ["a"] == [job.id for job in seed.claim(worker="w-2").jobs]


def test_a_lease_that_was_shortened_by_hand_expires_within_a_tenth_of_a_second(seed: Seed) -> None:
    """The functions do not know of the change. The next regular examination of the leases must find it."""
    seed.configure(lease_ms=1_000)
    seed.enqueue("a")
    claim = seed.claim_one("a")
    for _ in range(4):
        seed.advance(300)
        seed.extend([claim])
    seed.claim()
    seed.control.zadd(seed.keys("leases"), {"a": seed.now})
    seed.advance(100)

    assert ["a"] == [job.id for job in seed.claim(worker="w-2").jobs]


def test_a_dead_job_is_pruned_within_a_tenth_of_a_second_after_its_retention(seed: Seed) -> None:
    seed.configure(dead_retention_ms=150)
    seed.enqueue("a", "b")
    first, _ = seed.claim().jobs
    seed.fail(first, verdict="final")
    seed.claim()
    for _ in range(4):
        seed.advance(50)
        seed.claim()
    seed.advance(50)
    seed.claim()

    assert (None, "pruned") == (seed.state("a"), str(seed.entries()[-1].event))


# The first replica.


def test_attaching_the_first_replica_to_a_server_begins_no_epoch(
    start: Callable[..., Node], first: Node
) -> None:
    """Redis then gives the same history a new name. No data are lost."""
    facts = first.control.hmget(KEYS("meta"), "epoch", "replid")
    start(repl_diskless_sync_delay="0").follow(first)
    first.set_clock(START_MS + 1_000)

    assert (first.enqueue(), first.handshake(), first.enqueue()) == ("epoch", "-", "ok")
    assert first.claim()[0] == "ok"
    epoch, replid = first.control.hmget(KEYS("meta"), "epoch", "replid")
    assert facts[0] == epoch
    assert facts[1] != replid == first.info()["master_replid"]


def test_under_evalsha_attaching_the_first_replica_to_a_server_begins_an_epoch(
    start: Callable[..., Node],
) -> None:
    """A script remembers nothing between calls. So it cannot distinguish the first replica from a loss of data."""

    def scripts(name: str) -> Script:
        made = timed(name).instead
        assert made is not None
        return made

    node = start(scripts)
    begin(node)
    start(scripts).follow(node)

    assert (node.enqueue(), node.handshake(), node.enqueue()) == ("epoch", "replid_changed", "ok")


def test_after_functions_were_reloaded_attaching_the_first_replica_to_a_server_begins_an_epoch(
    start: Callable[..., Node], first: Node
) -> None:
    first.send("FUNCTION", "FLUSH")
    start(repl_diskless_sync_delay="0").follow(first)

    assert (first.enqueue(), first.handshake()) == ("epoch", "replid_changed")


@pytest.mark.slow
def test_attaching_the_first_replica_to_a_promoted_server_begins_no_second_epoch(
    start: Callable[..., Node], first: Node, second: Node
) -> None:
    """The promotion has begun an epoch. No data are lost when a third server then follows the promoted one."""
    second.promote()
    assert second.handshake() == "replid_changed"
    start(repl_diskless_sync_delay="0").follow(second)
    second.set_clock(START_MS + 5_000)

    second.enqueue()
    assert (second.handshake(), second.enqueue()) == ("-", "ok")
