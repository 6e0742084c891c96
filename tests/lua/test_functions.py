"""The scripts as Redis functions. A variable that one call leaves must not change the result of the next call.

Servers without functions run the same scripts with EVALSHA.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.limits.scopes import lane_name
from rq_core.protocol.calls import claims
from rq_core.scripts.script import Script, names
from tests.kit.clock import timed
from tests.kit.seed import LEASE_MS, Seed
from tests.kit.servers import RedisServer
from tests.kit.snapshots import Snapshot

LANES = [
    "",
    *(lane_name(2, ["task=t", f"tenant={tenant}"]) for tenant in "abc"),
    lane_name(0, ["calls@60s=x"]),
]


def as_script(name: str) -> Script:
    """Return the script in its form for EVALSHA. In this form it remembers nothing between calls."""
    made = timed(name).instead
    assert made is not None
    return made


def history(seed: Seed, number: int) -> Iterator[Snapshot]:
    """Yield a snapshot of the queue after each of 80 random steps.

    The steps block, open and empty lanes, end claims, cancel jobs, and change caps.
    """
    chance = random.Random(number)
    seed.cap("task=t", 3)
    seed.cap("tenant", 1)
    seed.cap("calls@60s", "2/60000ms/1")
    held = []
    ids = iter(range(1_000))

    def enqueue() -> None:
        lane = chance.choice(LANES)
        delay = chance.choice([0, 0, 500])
        priority = "critical" if lane.startswith("0") else "normal"
        seed.enqueue(
            *(
                seed.job(f"j-{next(ids)}", lane=lane, priority=priority, delay_ms=delay)
                for _ in range(chance.randint(1, 4))
            )
        )

    def claim() -> None:
        held.extend(seed.claim(chance.randint(1, 5)).jobs)

    def end() -> None:
        chance.shuffle(held)
        done = [held.pop() for _ in range(min(len(held), chance.randint(1, 3)))]
        if done:
            chance.choice([seed.complete, seed.fail, seed.rollback])(*done)

    def cancel() -> None:
        seed.cancel(f"j-{chance.randint(0, 60)}")

    def change() -> None:
        seed.cap(*chance.choice([("task=t", 5), ("task=t", 1), ("tenant", 2), ("tenant", "none")]))

    def wait() -> None:
        seed.advance(chance.choice([200, 600, LEASE_MS + 1]))

    for _ in range(80):
        chance.choices([enqueue, claim, end, cancel, change, wait], [4, 6, 5, 1, 1, 2])[0]()
        yield seed.snapshot()


@pytest.mark.parametrize("number", range(6))
def test_functions_write_the_same_bytes_as_scripts(redis_url: str, number: int) -> None:
    """Functions keep their variables after a call, and scripts do not."""
    kinds: list[Callable[[str], Script]] = [timed, as_script]
    told = []
    for scripts in kinds:
        with Seed(redis_url, scripts=scripts) as seed:
            seed.control.flushall()
            seed.clock.set(seed.now)
            told.append(list(history(seed, number)))
            seed.assert_consistent()
    for step, (kept, fresh) in enumerate(zip(*told, strict=True)):
        kept["meta"].pop("replid"), fresh["meta"].pop("replid")
        assert kept == fresh, f"after call {step} of history {number}"


@pytest.fixture
def narrow(redis_url: str) -> Iterator[Seed]:
    """Yield a Seed whose Redis user may run scripts, but no functions."""
    with Seed(redis_url, name="c-admin") as admin:
        admin.control.execute_command(
            "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-fcall", "-function"
        )  # type: ignore[no-untyped-call]
        kind, _, rest = redis_url.partition("://")
        url = f"{kind}://narrow:secret@{rest}"
        with Seed(url, name="c-narrow") as seed:
            yield seed
        admin.control.execute_command("ACL", "DELUSER", "narrow")  # type: ignore[no-untyped-call]


def test_a_user_without_rights_to_functions_uses_scripts(narrow: Seed) -> None:
    narrow.enqueue("a", "b")
    first, second = narrow.claim().jobs
    assert narrow.complete(first) == {}
    narrow.fail(second, verdict="final")
    narrow.assert_consistent()


def test_a_full_server_without_functions_is_drained_with_scripts(seed: Seed) -> None:
    seed.enqueue("a", "b")
    seed.control.execute_command("FUNCTION", "FLUSH")  # type: ignore[no-untyped-call]
    seed.control.config_set("maxmemory", "1")
    try:
        first, second = seed.claim().jobs
        assert seed.complete(first, second) == {}
    finally:
        seed.control.config_set("maxmemory", "0")


def test_every_function_is_named_after_its_script(seed: Seed) -> None:
    """`SLOWLOG` and `MONITOR` show the name of a function, but only the digest of a script."""
    for name in names():
        seed.control.execute_command(*timed(name).loading)  # type: ignore[no-untyped-call]
    loaded = seed.control.execute_command("FUNCTION", "LIST", "LIBRARYNAME", "rqc_claim_*")  # type: ignore[no-untyped-call]
    assert loaded
    assert all(timed(name).function.startswith(f"rqc_{name}_") for name in names())


def test_functions_do_not_cache_negative_zero(seed: Seed) -> None:
    """A function could remember ``-0`` from an argument and send it to Redis later. Redis refuses the text ``-0`` as an
    index."""
    seed.control.execute_command("FUNCTION", "FLUSH")  # type: ignore[no-untyped-call]
    strange = seed.claim_call(1)
    strange.args["sweep_max"] = "-0"
    seed.client.run(seed.client.calls.delivery.carry_out([strange]))
    seed.enqueue("a")
    assert [job.id for job in seed.claim().jobs] == ["a"]


def test_an_unreadable_limit_stops_no_claim(seed: Seed) -> None:
    seed.enqueue("a", scopes=["tenant=x"])
    seed.control.hset(seed.keys("caps"), "tenant", "rubbish version=1 from=live")
    assert [job.id for job in seed.claim().jobs] == ["a"]


@pytest.mark.damaged
def test_a_job_without_a_place_in_line_stops_no_claim(seed: Seed) -> None:
    seed.enqueue("a")
    seed.enqueue("b", scopes=["tenant=x"])
    seed.control.hset(seed.keys("state"), "a", f"ready task=t since={seed.now}")
    assert {job.id for job in seed.claim().jobs} == {"a", "b"}


@pytest.mark.slow
def test_the_memory_of_functions_does_not_grow_with_the_number_of_lanes(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Lua keeps all texts in one table, which becomes slower when it grows."""

    def least_memory(client: Client, control: redis.Redis, tenants: int) -> int:
        """Return the memory (bytes) that functions use with this number of lanes: the least of 16 rounds."""
        found = []
        for number in range(16):
            client.run(
                client.calls.enqueue.many(
                    NewJob(
                        f"j-{tenants}-{number}-{n}",
                        "q",
                        profile("t"),
                        "{}",
                        lane=lane_name(2, [f"tenant=k{n}"]),
                    )
                    for n in range(tenants)
                )
            )
            while jobs := client.run(claims.claim("q", "w-1", 100)).jobs:
                pairs = [(job.id, job.fence) for job in jobs]
                client.run(claims.complete("q", "w-1", pairs))
            info: Any = control.info("memory")
            found.append(info["used_memory_vm_functions"])
        return min(found)

    server = start_redis()
    with server.client() as control, Client(server.url) as client:
        client.run(client.calls.caps.set("q", [("tenant", "1", -1)]))
        few, many = (least_memory(client, control, tenants) for tenants in (1_000, 4_000))

    assert many - few < 500_000
