"""Redis under Sentinel on loopback: a primary, its replicas, and three sentinels that carry out failovers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import redis

from tests.kit.processes import Child
from tests.kit.servers import Engine, RedisServer, free_port
from tests.kit.wait import wait_until

SERVICE: Final = "main"
QUORUM: Final = 2
DOWN_AFTER_MS: Final = 1_000
FAILOVER_TIMEOUT_MS: Final = 4_000
PERIODS_MS: Final = {"info-period": 10_000, "publish-period": 2_000}
"""How often sentinels send queries and messages by default, in ms. A group of sentinels is complete sooner if they do
this more often."""
HURRY_MS: Final = 200
PROMOTED_WITHIN: Final = 40.0
"""The longest time (s) until a replica is promoted. An election may fail, and is repeated after twice the failover
timeout."""


class SentinelProcess:
    """One sentinel. After a restart it has the same port and the state that it had saved."""

    def __init__(
        self, engine: Engine, directory: Path, primary: RedisServer, words: Mapping[str, str]
    ) -> None:
        assert engine.binary is not None
        self._binary = engine.binary
        self.port = free_port()
        self.password = words.get("requirepass")
        directory.mkdir()
        self._file = directory / "sentinel.conf"
        self._log = directory / "sentinel.log"
        lines = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "sentinel monitor": f"{SERVICE} 127.0.0.1 {primary.port} {QUORUM}",
            "sentinel down-after-milliseconds": f"{SERVICE} {DOWN_AFTER_MS}",
            "sentinel failover-timeout": f"{SERVICE} {FAILOVER_TIMEOUT_MS}",
            **words,
        }
        self._file.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self._process: Child | None = None

    def start(self) -> None:
        self._process = Child([self._binary, str(self._file), "--sentinel"], self._log, shared=True)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, password=self.password, decode_responses=True)

    def answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            return False

    def knows_all(self, count: int) -> bool:
        """Return whether the sentinel knows the primary, ``count`` replicas that it may promote, and two other
        sentinels."""
        try:
            with self.client() as client:
                (facts,) = client.sentinel_masters().values()
                replicas = client.sentinel_slaves(SERVICE)
        except (redis.ConnectionError, redis.TimeoutError):
            return False
        fit = [each for each in replicas if each["flags"] == "slave" and each["slave-priority"]]
        return bool(
            facts["flags"] == "master"
            and facts["num-other-sentinels"] == 2
            and sum(each["master-link-status"] == "ok" for each in fit) >= count
        )

    def hurry(self, *, hurry: bool) -> None:
        """Let this sentinel send its messages more often or, with ``hurry=False``, at the default rate."""
        periods = {name: HURRY_MS if hurry else usual for name, usual in PERIODS_MS.items()}
        words = [word for pair in periods.items() for word in pair]
        with self.client() as client:
            client.execute_command("SENTINEL DEBUG", *words)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _signal(self, number: int) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)


class SentinelGroup:
    """A primary, its replicas and their sentinels. ``up`` starts them in a ``with`` statement."""

    def __init__(
        self,
        engine: Engine,
        directory: Path,
        *,
        password: str | None = None,
        sentinel_password: str | None = None,
        replicas: int = 1,
    ) -> None:
        options = {
            "appendonly": "yes",
            "appendfsync": "always",
            "repl-timeout": "10",
        }
        words = {}
        if password is not None:
            options |= {"requirepass": password, "masterauth": password}
            words["sentinel auth-pass"] = f"{SERVICE} {password}"
        if sentinel_password is not None:
            words["requirepass"] = sentinel_password
        self._engine, self._directory, self._words = engine, directory, words
        self._passwords = password, sentinel_password
        self.servers = []
        for name in "abc"[: replicas + 1]:
            (directory / name).mkdir()
            self.servers.append(RedisServer(engine, directory / name, options))
        self.sentinels: list[SentinelProcess] = []

    @property
    def url(self) -> str:
        """Return the URL with which a client reaches the group."""
        password, sentinel_password = self._passwords
        user = f":{password}@" if password else ""
        query = f"?sentinel_password={sentinel_password}" if sentinel_password else ""
        hosts = ",".join(f"127.0.0.1:{each.port}" for each in self.sentinels)
        return f"redis+sentinel://{user}{hosts}/{SERVICE}/0{query}"

    @contextlib.contextmanager
    def up(self) -> Iterator[SentinelGroup]:
        try:
            for server in self.servers:
                server.start()
            primary, *replicas = self.servers
            for replica in replicas:
                with replica.client() as client:
                    client.replicaof("127.0.0.1", str(primary.port))
            for number in range(3):
                place = self._directory / f"sentinel-{number}"
                sentinel = SentinelProcess(self._engine, place, primary, self._words)
                self.sentinels.append(sentinel)
                sentinel.start()
            wait_until(lambda: all(each.answers() for each in self.sentinels), "sentinels answer")
            self.wait_whole()
            yield self
        finally:
            for sentinel in self.sentinels:
                sentinel.kill()
            for server in self.servers:
                server.kill()

    def role(self, server: RedisServer) -> str | None:
        """Return the role that a server reports, or None if it does not answer."""
        try:
            with server.client(socket_timeout=5.0) as client:
                said: list[bytes] = client.execute_command("ROLE")
                return said[0].decode()
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    def wait_whole(self) -> None:
        """Wait until one server is the primary, all others replicate it, and every sentinel knows it."""
        replicas = len(self.servers) - 1
        for sentinel in self.sentinels:
            sentinel.hurry(hurry=True)
        wait_until(
            lambda: (
                sorted(str(self.role(each)) for each in self.servers)
                == ["master"] + ["slave"] * replicas
                and all(each.knows_all(replicas) for each in self.sentinels)
            ),
            lambda: f"the group is whole: {[self.role(each) for each in self.servers]}",
            timeout=60,
        )
        for sentinel in self.sentinels:
            sentinel.hurry(hurry=False)

    @property
    def primary(self) -> RedisServer:
        return next(each for each in self.servers if self.role(each) == "master")

    def wait_replicated(self) -> None:
        """Wait until every replica has all writes of the primary."""
        replicas = len(self.servers) - 1
        with self.primary.client() as client:
            assert client.execute_command("WAIT", replicas, 10_000) == replicas

    def takes_writes(self, server: RedisServer) -> bool:
        """Return whether a server is a primary with as many replicas as it needs to accept writes."""
        try:
            with server.client(socket_timeout=5.0) as client:
                client.delete("nothing of this name is there")
        except redis.RedisError:
            return False
        return True

    def other(self, server: RedisServer) -> RedisServer:
        return next(each for each in self.servers if each is not server)

    def need(self, quorum: int) -> None:
        """Set the quorum: how many sentinels must agree that the primary is down.

        No failover happens while the quorum exceeds the number of sentinels. (To kill the sentinels instead would not
        do: after a restart, sentinels do not know for how long the primary has been down, and reject the replica.)
        """
        for sentinel in self.sentinels:
            with sentinel.client() as client:
                client.execute_command("SENTINEL", "SET", SERVICE, "quorum", str(quorum))

    def cut_replica_off(self) -> RedisServer:
        """Suspend the replica and break its link to the primary. Return the replica, which the test thaws later."""
        replica = self.other(self.primary)
        replica.freeze()
        # What is on its way into a socket would be read when it goes on.
        with self.primary.client() as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "replica")
        return replica

    def lose_primary(self) -> RedisServer:
        """Kill the primary with SIGKILL. Return it, so that the test can start it again."""
        lost = self.primary
        lost.kill()
        return lost

    def wait_promoted(self, lost: RedisServer) -> None:
        """Wait until another server than ``lost`` is the primary."""
        wait_until(
            lambda: self.role(self.other(lost)) == "master",
            "the replica is promoted",
            timeout=PROMOTED_WITHIN,
        )
