"""A Redis Cluster of six processes on loopback: three primaries, each with one replica.

The nodes exchange messages over a bus that a test can cut (tests/kit/bus.py). Tests in `tests/cluster` get a cluster
from the fixture `cluster`, and other tests may start their own cluster.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rq_core.connections.routing import SLOTS, slot_of
from tests.kit.bus import Bus
from tests.kit.servers import Engine, RedisServer, free_port
from tests.kit.wait import wait_until

SHARDS = 3
NODE_TIMEOUT_MS = 1_500
"""The time (ms) after which a node without an answer counts as failed for the other nodes."""
FORMED_S = 30.0
FAILOVER_S = 20.0
MIGRATE_MS = 20_000
RESET = {
    "cluster-require-full-coverage": "no",
    "cluster-replica-no-failover": "no",
    "cluster-replica-validity-factor": "10",
    "masterauth": "",
}
"""The settings that a test may change on all nodes, with the values that are restored before the next test."""


class RedisCluster:
    """Six servers that form a cluster: three shards, each with a primary and a replica."""

    def __init__(self, engine: Engine, directory: Path, **options: str) -> None:
        self.engine = engine
        self.servers: list[RedisServer] = []
        ports = [free_port() for _ in range(2 * SHARDS)]
        self.bus = Bus(ports)
        for number, port in enumerate(ports):
            place = directory / f"node-{number}"
            place.mkdir()
            own = {
                "cluster-enabled": "yes",
                # A replica is no neighbour: the address that it comes from is that of its bus.
                "protected-mode": "no",
                "cluster-config-file": "nodes.conf",
                "cluster-node-timeout": str(NODE_TIMEOUT_MS),
                "cluster-port": str(port),
                "cluster-announce-ip": "127.0.0.1",
                "cluster-announce-bus-port": str(self.bus.door(number)),
                "bind-source-addr": self.bus.address(number),
                # A shard without a primary is down, the others go on.
                "cluster-require-full-coverage": "no",
                "cluster-allow-replica-migration": "no",
                "repl-ping-replica-period": "1",
                **options,
            }
            self.servers.append(RedisServer(engine, place, own))

    @property
    def url(self) -> str:
        seeds = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://{seeds}"

    def start(self) -> "RedisCluster":
        """Start the servers and join them into a cluster. The first three servers get all slots."""
        self.bus.start()
        for server in self.servers:
            server.start()
        bounds = [SLOTS * n // SHARDS for n in range(SHARDS + 1)]
        for server, (first, end) in zip(self.servers, itertools.pairwise(bounds), strict=False):
            self.ask(server, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
        for number, server in enumerate(self.servers):
            self.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                port, door = self.servers[0].port, self.bus.door(0)
                self.ask(server, "CLUSTER", "MEET", "127.0.0.1", port, door)
        self._wait("all know each other", lambda server: len(self._nodes(server)) == 2 * SHARDS)
        for primary, replica in zip(self.servers[:SHARDS], self.servers[SHARDS:], strict=True):
            self.ask(replica, "CLUSTER", "REPLICATE", self.id_of(primary))
        self.wait_whole()
        return self

    def wait_whole(self) -> None:
        """Wait until each shard has a primary and a replica with all data, and all nodes agree about it."""
        self._wait("every shard is whole", self._sees_all_shards)
        for server in self.servers:
            wait_until(
                lambda server=server: self._level(server),  # type: ignore[misc]
                f"node {server.port} has its data",
                timeout=FORMED_S,
            )

    def _wait(self, what: str, predicate: Any) -> None:
        for server in self.servers:
            wait_until(
                lambda server=server: predicate(server),  # type: ignore[misc]
                lambda server=server: f"{what}, asked of {server.port}: {self._nodes(server)}",  # type: ignore[misc]
                timeout=FORMED_S,
            )

    def _sees_all_shards(self, server: RedisServer) -> bool:
        nodes = self._nodes(server)
        alive = [n for n in nodes if "fail" not in n[2] and n[7] == "connected"]
        primaries = [n for n in alive if "master" in n[2] and len(n) > 8]
        state = "cluster_state:ok" in self.ask(server, "CLUSTER", "INFO")
        return state and len(alive) == 2 * SHARDS and len(primaries) == SHARDS

    def _level(self, server: RedisServer) -> bool:
        with server.client(decode_responses=True) as client:
            info = client.info("replication")
        return bool(info["role"] == "master" or info["master_link_status"] == "up")

    def stop(self) -> None:
        for server in self.servers:
            server.kill()
        self.bus.close()

    def ask(self, server: RedisServer, *words: Any) -> Any:
        """Send one command to a server, and return its reply."""
        with server.client(decode_responses=True) as client:
            # Not redis-py's own readings of the replies.
            client.response_callbacks.clear()
            return client.execute_command(*words)

    def id_of(self, server: RedisServer) -> str:
        found: str = self.ask(server, "CLUSTER", "MYID")
        return found

    def _nodes(self, server: RedisServer) -> list[list[str]]:
        return [line.split() for line in self.ask(server, "CLUSTER", "NODES").splitlines()]

    # Who serves what.

    def primary_of(self, key: str) -> RedisServer:
        """Return the server that has the key's slot, according to the running nodes."""
        owner = self._owner(next(s for s in self.servers if s.running), slot_of(key))
        return next(server for server in self.servers if server.port == owner)

    def primaries(self) -> list[RedisServer]:
        return [s for s in self.servers if s.running and self.ask(s, "ROLE")[0] == "master"]

    def shard_of(self, primary: RedisServer) -> list[RedisServer]:
        """Return the primary and the replica of a shard."""
        name = self.id_of(primary)
        ports = {
            int(n[1].split("@")[0].split(":")[1]) for n in self._nodes(primary) if n[3] == name
        }
        return [primary, *(server for server in self.servers if server.port in ports)]

    def queues(self, count: int, prefix: str = "q") -> dict[int, list[str]]:
        """Return ``count`` names of queues for each shard, by the port of the shard's primary."""
        found: dict[int, list[str]] = {server.port: [] for server in self.primaries()}
        for number in itertools.count():
            name = f"{prefix}{number}"
            names = found[self.primary_of(f"{{{name}}}").port]
            if len(names) < count:
                names.append(name)
            if all(len(names) == count for names in found.values()):
                return found
        raise AssertionError("unreachable")

    def keys_in(self, server: RedisServer, slot: int) -> list[str]:
        found: list[str] = self.ask(server, "CLUSTER", "GETKEYSINSLOT", slot, 100)
        return found

    # What happens to it.

    def reset(self) -> None:
        """Remove all data and functions, start stopped servers again, and restore all settings."""
        for server in self.servers:
            if not server.running:
                server.start()
        for name, value in RESET.items():
            self.set(name, value)
        self.wait_whole()
        for server in self.primaries():
            self.ask(server, "FLUSHALL")
            self.ask(server, "FUNCTION", "FLUSH")

    def migrating(self, key: str, target: RedisServer) -> Iterator[str]:
        """Move the slot of `key` to the server `target`. Yield after each step.

        The yielded texts are ``open``, the name of each moved key, and ``closed``.
        """
        slot, source = slot_of(key), self.primary_of(key)
        assert source is not target
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))
        yield "open"
        while keys := self.keys_in(source, slot):
            for name in keys:
                self.ask(source, "MIGRATE", "127.0.0.1", target.port, name, 0, MIGRATE_MS)
                yield name
        for server in (target, source):
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
        # The others would learn it in a moment; a test that asks them now shall see it.
        for server in self.primaries():
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))
        yield "closed"

    def migrate(self, key: str, target: RedisServer) -> None:
        for _ in self.migrating(key, target):
            pass

    def strike(self, primary: RedisServer) -> Callable[[], bool]:
        """Kill a primary with SIGKILL. Return a function that says whether all other nodes know the new primary."""
        promoted = self.watch(primary)
        primary.kill()
        return promoted

    def watch(self, primary: RedisServer) -> Callable[[], bool]:
        """Return a function that says whether another server has replaced this primary, and all other nodes know the
        new primary."""
        slot = next(first for first, _, port in self._ranges(primary) if port == primary.port)
        others = [server for server in self.servers if server.running and server is not primary]

        def promoted() -> bool:
            owners = {self._owner(server, slot) for server in others}
            return len(owners) == 1 and owners <= {server.port for server in others}

        return promoted

    def cut_replica_off(self, primary: RedisServer) -> RedisServer:
        """Break the link between a primary and its replica, and return the replica. It keeps the data that it has now.

        The replica may still replace the primary: the shard then loses what it acknowledged after this call.
        `let_replicate` ends this.
        """
        replica = self.shard_of(primary)[1]
        # The primary has no password, so it refuses a replica that sends one.
        self.ask(replica, "CONFIG", "SET", "masterauth", "unknown")
        self.ask(replica, "CONFIG", "SET", "cluster-replica-validity-factor", 0)
        self.ask(primary, "CLIENT", "KILL", "TYPE", "replica")
        wait_until(lambda: not self._level(replica), "the link is broken")
        return replica

    def let_replicate(self, server: RedisServer) -> None:
        """Let a server be a replica again after `cut_replica_off`."""
        for name in ("masterauth", "cluster-replica-validity-factor"):
            self.ask(server, "CONFIG", "SET", name, RESET[name])

    def take_over(self, replica: RedisServer) -> None:
        """Promote a replica without the votes of the other primaries, as an operator does when most of these are down.

        Without this call, the primaries that are left elect the replica if they are most of all primaries.
        """
        self.ask(replica, "CLUSTER", "FAILOVER", "TAKEOVER")

    def all_know(self, key: str, primary: RedisServer) -> bool:
        """Return whether all running nodes take this server for the primary of the key's slot."""
        slot = slot_of(key)
        return all(self._owner(each, slot) == primary.port for each in self.servers if each.running)

    @contextlib.contextmanager
    def cutting_off(self, server: RedisServer) -> Iterator[None]:
        """Cut a node off from the other nodes during the block. Clients can still reach the node."""
        with self.bus.cutting_off(self.servers.index(server)):
            yield

    def set(self, name: str, value: str) -> None:
        """Change a setting on all nodes with CONFIG SET. `reset` restores its usual value."""
        for server in self.servers:
            self.ask(server, "CONFIG", "SET", name, value)

    def _owner(self, server: RedisServer, slot: int) -> int | None:
        return next((p for first, last, p in self._ranges(server) if first <= slot <= last), None)

    def _ranges(self, server: RedisServer) -> list[tuple[int, int, int]]:
        """Return the slot ranges that a server reports: the first slot, the last slot, and the port of the primary."""
        shards = self.ask(server, "CLUSTER", "SLOTS")
        return [(first, last, primary[1]) for first, last, primary, *_ in shards]
