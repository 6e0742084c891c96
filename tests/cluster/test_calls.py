"""Calls to a cluster, and URLs of clusters. Each call goes to the shard of its queue."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.connections.transport import PoolTransport
from rq_core.errors import InvalidOption, ServerUnavailable, ServerUnsuitable
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, Profile
from rq_core.model.keys import queue_keys, queues_key
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.calls.schedules import Declaration, ScheduleChange, Told, tick
from rq_core.protocol.engine import server_check
from rq_core.protocol.engine.plan import Patience, Unsent
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from rq_core.worker.ticker import instants_of
from tests.kit.clusters import RedisCluster
from tests.kit.servers import free_port
from tests.kit.wait import wait_until, wait_until_async

ids = JobIds()


def jobs(queue: str, count: int = 3) -> list[NewJob]:
    return [NewJob(ids(), queue, Profile("send"), "{}") for _ in range(count)]


def names(cluster: RedisCluster, each: int = 2) -> list[str]:
    return [name for on_shard in cluster.queues(each).values() for name in on_shard]


@pytest.mark.slow
def test_schedules_of_queues_on_every_shard_can_be_changed_run_and_counted(
    cluster: RedisCluster,
) -> None:
    queues = names(cluster, 1)
    with Client(cluster.url) as client:
        calls = client.calls.schedules
        for queue in queues:
            made = Declaration.of(
                jobs(queue, 1)[0], recurrence("beat", every=3600, overlap="queue")
            )
            assert "changed" == client.run(calls.put(queue, [made]))["beat"].outcome
            assert "run" == client.run(calls.run(queue, "beat")).outcome
            assert "changed" == client.run(calls.change(queue, "beat", "pause")).outcome
            assert "changed" == client.run(calls.change(queue, "beat", "resume")).outcome
            assert {} == client.run(tick(queue, "w-1")).due

        found = client.run(client.calls.reads.overview()).queues
        assert dict.fromkeys(queues, 1) == {each.queue: each.schedules for each in found}
        assert {1} == {each.ready_jobs for each in found}


def test_queues_on_every_shard_accept_jobs(cluster: RedisCluster) -> None:
    """Checks two queues on each shard."""
    queues = names(cluster)
    with Client(cluster.url) as client:
        for queue in queues:
            accepted = client.run(client.calls.enqueue.many(jobs(queue)))
            assert len(accepted.ids) == 3

        assert client.run(client.calls.reads.queues()) == sorted(queues)
        for queue in queues:
            assert sum(client.run(client.calls.reads.counts(queue)).ready.values()) == 3
            assert len(client.run(client.calls.reads.snapshot(queue))["jobs"]) == 3


def test_each_of_many_schedules_is_stored_and_fired_on_the_shard_of_its_queue(
    cluster: RedisCluster,
) -> None:
    queues = names(cluster)
    with Client(cluster.url) as client:
        made = [
            Declaration.of(
                NewJob("-", queue, Profile("send"), "{}"),
                recurrence("beat", every=1, overlap=overlap),
            )
            for queue, overlap in zip(queues, itertools.cycle(("skip", "queue")))
        ]
        found: list[dict[str, ScheduleChange]] = []
        client.run(client.calls.schedules.put_many(zip(queues, made, strict=True), found.append))
        assert [each["beat"].outcome for each in found] == ["changed"] * len(queues)

        for queue in queues:
            handed = wait_until(
                lambda: (answer := client.run(tick(queue, "w-1"))).due and answer,  # noqa: B023
                "the schedule is due",
            )
            assert handed
            told = client.run(tick(queue, "w-1", instants_of(handed.due, handed.now_ms))).told
            assert told == {"beat": Told("fired")}
            (claim,) = client.run(claims.claim(queue, "w-1", 10)).jobs
            assert claim.id.startswith("tick-beat-")


@pytest.mark.slow
def test_the_overview_has_queues_of_all_shards(cluster: RedisCluster) -> None:
    queues = names(cluster)
    with Client(cluster.url) as client:
        for queue in queues:
            client.run(client.calls.enqueue.many(jobs(queue)))
        says = Presence("h", 1, "0.1.0", "c0de", tuple(queues), 10, 0, 0)
        client.run(worker_registry.announce("rqc", "w-1", says, queues, ["send"]))
        client.run(worker_registry.sweep("rqc", queues))

        found = client.run(client.calls.reads.overview())

    assert [each.queue for each in found.queues] == sorted(queues)
    assert {each.ready_jobs for each in found.queues} == {3}
    assert {each.present[0].worker for each in found.queues} == {"w-1"}
    assert (found.unreadable, found.used_memory) == ({}, None)


@pytest.mark.slow
async def test_a_worker_calls_several_shards_in_one_round_trip(cluster: RedisCluster) -> None:
    """Checks a worker that settles and claims on several shards at once.

    Each call gets its own answer.
    """
    queues = names(cluster)
    async with AsyncClient(cluster.url) as client:
        wanted = {}
        for queue in queues:
            accepted = await client.run(client.calls.enqueue.many(jobs(queue)))
            wanted[queue] = set(accepted.ids)

        claimed = await client.run(
            client.calls.delivery.carry_out([claims.claim(q, "w-1", 10) for q in queues])
        )
        found = {q: {job.id for job in each.jobs} for q, each in zip(queues, claimed, strict=True)}

        assert wanted == found
        settled = await client.run(
            client.calls.delivery.carry_out(
                [
                    claims.complete(q, "w-1", [(job.id, job.fence) for job in each.jobs])
                    for q, each in zip(queues, claimed, strict=True)
                ]
            )
        )
        assert [{}] * len(queues) == settled


def test_forgotten_functions_are_loaded_on_every_primary(cluster: RedisCluster) -> None:
    """Checks every primary, since a node does not share its functions with other nodes."""
    queues = names(cluster, 1)
    with Client(cluster.url) as client:
        for queue in queues:
            client.run(client.calls.enqueue.many(jobs(queue)))
        for server in cluster.primaries():
            cluster.ask(server, "FUNCTION", "FLUSH")

        for queue in queues:
            assert len(client.run(client.calls.enqueue.many(jobs(queue))).ids) == 3


def test_a_new_queue_is_listed_before_it_is_used(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that the list of queues has a queue's name before the first job.

    The list may be on another shard, which may be down. A mirror finds only the queues in the list.
    """
    listed = queues_key()
    apart = next(
        name
        for (name, *_) in cluster.queues(1).values()
        if cluster.primary_of(queue_keys(name)("meta")) is not cluster.primary_of(listed)
    )
    with Client(cluster.url, patience=Patience(unsent=0.2)) as client:
        exchange = PoolTransport.exchange
        away = True

        def without_list(
            transport: PoolTransport, commands: Sequence[Any], *more: Any
        ) -> list[Any]:
            if away and any(listed in command for command in commands):
                return [Unsent("away")] * len(commands)
            return exchange(transport, commands, *more)

        monkeypatch.setattr(PoolTransport, "exchange", without_list)
        for _ in range(2):
            with pytest.raises(ServerUnavailable):
                client.run(client.calls.enqueue.many(jobs(apart)))
        away = False
        client.run(client.calls.enqueue.many(jobs(apart)))

        assert [apart] == client.run(client.calls.reads.queues())


def test_a_client_follows_a_slot_that_moved(cluster: RedisCluster) -> None:
    """Checks the answer MOVED. The client calls the new node at once, also in later calls and in transactions."""
    (queue, *_), *_ = cluster.queues(1).values()
    with Client(cluster.url) as client:
        client.run(client.calls.enqueue.many(jobs(queue)))
        key = queue_keys(queue)("meta")
        target = next(s for s in cluster.primaries() if s is not cluster.primary_of(key))

        cluster.migrate(key, target)
        assert len(client.run(client.calls.reads.snapshot(queue))["jobs"]) == 3
        client.run(client.calls.enqueue.many(jobs(queue)))

        assert cluster.primary_of(key) is target
        assert len(client.run(client.calls.reads.snapshot(queue))["jobs"]) == 6


def test_a_client_follows_the_answer_ask_for_a_key_of_a_migrating_slot(
    cluster: RedisCluster,
) -> None:
    """Checks the answer ASK. The client asks the new node for a key that has already moved there."""
    (queue, *_), *_ = cluster.queues(1).values()
    with Client(cluster.url) as client:
        client.run(client.calls.enqueue.many(jobs(queue)))
        keys = queue_keys(queue)
        source = cluster.primary_of(keys("meta"))
        target = next(s for s in cluster.primaries() if s is not source)
        moving = cluster.migrating(keys("meta"), target)
        assert next(moving) == "open"
        while keys("jobs") in cluster.keys_in(
            source, cluster.ask(source, "CLUSTER", "KEYSLOT", keys("meta"))
        ):
            next(moving)

        plan = client.calls.delivery.ask([["HLEN", keys("jobs")], ["HLEN", keys("meta")]], queue)
        alive, facts = client.run(plan)
        list(moving)

        assert alive == 3
        assert facts > 3


async def test_a_call_that_is_sent_behind_a_wait_follows_a_slot_that_moved_during_the_wait(
    cluster: RedisCluster,
) -> None:
    """Checks a wait whose slot moves meanwhile. The old node answers MOVED twice, and the new one carries out the
    call."""
    (queue, *_), *_ = cluster.queues(1).values()
    wake = queue_keys(queue)("wake")
    source = cluster.primary_of(wake)
    target = next(s for s in cluster.primaries() if s is not source)
    async with AsyncClient(cluster.url) as client:
        await client.run(client.calls.enqueue.many(jobs(queue)))
        cluster.ask(source, "DEL", wake)
        call = claims.claim(queue, "w-1", 5)
        never = asyncio.get_running_loop().create_future()
        answer = asyncio.create_task(client.wait_and_carry_out(call, 30.0, never))
        await wait_until_async(
            lambda: "cmd=blpop" in str(cluster.ask(source, "CLIENT", "LIST")), "it waits"
        )

        cluster.migrate(wake, target)
        claimed, error = await answer

    assert isinstance(claimed, Claimed)
    assert len(claimed.jobs) == 3
    assert str(error).startswith("MOVED")


def test_a_plain_url_of_a_cluster_is_refused_with_the_right_url(
    cluster: RedisCluster,
) -> None:
    """Checks that the first call raises the error with the right URL, and no error about a cluster slot."""
    with Client(cluster.servers[0].url) as client, pytest.raises(ServerUnsuitable) as caught:
        client.run(client.calls.enqueue.many(jobs("mail")))

    assert f"redis+cluster://127.0.0.1:{cluster.servers[0].port}" in str(caught.value)


def test_a_cluster_url_of_a_single_server_is_refused_with_the_right_url(
    redis_url: str,
) -> None:
    with (
        Client(redis_url.replace("redis://", "redis+cluster://")) as client,
        pytest.raises(ServerUnsuitable, match="write redis://"),
    ):
        client.run(client.calls.enqueue.many(jobs("mail")))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+cluster://localhost:7000/1", "no database but 0"),
        ("redis+cluster://", "HOST:PORT"),
        ("redis+cluster://localhost:x", "HOST:PORT"),
        ("redis+cluster://[::1:7000", r"must have each IPv6 address in \[ and \]"),
        ("redis+cluster://[::1]:7000,[::2", r"must have each IPv6 address in \[ and \]"),
        ("redis+cluster://::1:7000", r"must have each IPv6 address in \[ and \]"),
        ("redis+cluster://localhost:7000?nonsense=1", "nonsense"),
    ],
)
def test_an_invalid_cluster_url_is_refused_at_once(url: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Client(url)


@pytest.mark.parametrize("whole", ["yes", "no"])
def test_the_server_check_warns_that_a_cluster_requires_full_coverage(
    cluster: RedisCluster, whole: str
) -> None:
    """Checks the warning that a worker logs at its start, and that the doctor prints."""
    cluster.set("cluster-require-full-coverage", whole)
    with Client(cluster.url) as client:
        remarks = client.run(server_check.remarks_on(client.calls.delivery.asking))

    assert ("coverage" in {remark.about for remark in remarks}) == (whole == "yes")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_server_check_warns_if_one_node_requires_full_coverage_of_the_cluster(
    cluster: RedisCluster, place: int
) -> None:
    """Checks that the client reads this setting on every node. A node's setting applies to the queues on this node."""
    cluster.set("cluster-require-full-coverage", "no")
    node = cluster.primaries()[place]
    cluster.ask(node, "CONFIG", "SET", "cluster-require-full-coverage", "yes")
    with Client(cluster.url) as client:
        remarks = client.run(server_check.remarks_on(client.calls.delivery.asking))

    assert "coverage" in {remark.about for remark in remarks}


@pytest.mark.parametrize(
    ("scheme", "says"), [("redis+cluster", "reach the nodes"), ("redis+sentinel", "the sentinels")]
)
def test_the_error_of_an_unreachable_cluster_or_sentinel_says_what_to_check(
    scheme: str, says: str
) -> None:
    """Checks that the error does not advise to start the embedded server, which is advice for a single server."""
    url = f"{scheme}://me:secret@127.0.0.1:{free_port()}/{'main' if 'sentinel' in scheme else ''}"
    with (
        Client(url, patience=Patience(unsent=0.05)) as client,
        pytest.raises(ServerUnavailable, match=says) as caught,
    ):
        client.run(client.calls.reads.queues())

    assert "embedded" not in str(caught.value)
    assert "secret" not in str(caught.value)
