"""The server of a simulation: a real server whose clock and replication id belong to the simulation.

Scripts read both from keys outside every queue. So nothing in a seed depends on the machine. The server can forget all
data, load an old snapshot, or be replaced by another server, each in one step.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import redis

from rq_core.connections.transport import PoolTransport
from rq_core.model.keys import DEFAULT_PREFIX, queue_keys
from rq_core.scripts.header import Variant
from rq_core.scripts.script import Script, build_function, lua_directory
from tests.kit.clock import CLOCK, CLOCK_KEY
from tests.kit.failover import forget_memories
from tests.kit.fleet import QUEUE
from tests.kit.servers import Engine, RedisServer, engines
from tests.rigs.simulator.results import Clock

START_MS: Final = 1_800_000_000_000
ANSWER_S: Final = 120.0
"""Seconds for an answer of the server. The seed alone decides which answers are lost: a busy machine must lose none."""
REPLID_KEY: Final = "test:replid"

_REPLID = f"""--[[ replid: the name that the simulation gives to the server's history. ]]

local function server_replid()
  return redis.call('GET', '{REPLID_KEY}')
end
"""


def includes() -> dict[str, str]:
    """Return the Lua includes that replace shipped includes in a simulation, by name."""
    return {"clock": CLOCK, "replid": _REPLID}


Scripts = Callable[[str], Script]


@cache
def simulated(name: str) -> Script:
    """Return the script with the simulation's clock and replication id. Delivery takes this function as ``scripts``."""
    return build_function(name, Variant(includes=includes()))


OPTIONS: Final = {
    # Small hashes and sets are read in the order in which they were written, and not in that of their hashes, which
    # begin with a number that each server draws for itself.
    "hash-max-listpack-entries": "10000",
    "hash-max-listpack-value": "1000000",
    "set-max-listpack-entries": "10000",
    "zset-max-listpack-entries": "10000",
}


def start_server(where: Path, engine: Engine | None = None) -> RedisServer:
    """Start a server that stores nothing on disk. Its Unix socket is in the directory ``where``."""
    options = {**OPTIONS, "unixsocket": str(where / "s")}
    return RedisServer(engine or engines()[0], where, options).start()


def socket_url(server: RedisServer) -> str:
    return f"unix://{server.options['unixsocket']}?db=0"


Dump = list[tuple[bytes, bytes]]


class Time:
    """The time of a simulation (Unix ms), which only increases. All its servers share it."""

    def __init__(self) -> None:
        self.now_ms = START_MS


class World:
    """A server for one simulation, with one queue. It begins without data, at the start of the simulated time."""

    def __init__(self, url: str, queue: str = QUEUE, time: Time | None = None) -> None:
        self.url = url
        self.queue = queue
        self._outbox = queue_keys(queue)("outbox")
        self.time = time or Time()
        self.skew_ms = 0
        """The difference (ms) between the clock of the server and the time of the simulation."""
        self.replid = "a" * 40
        self.transport = PoolTransport(url, answer_within=ANSWER_S, connect_within=ANSWER_S)
        self.control: Any = redis.Redis.from_url(
            url, socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
        )
        self._told_ms = 0
        self._latest_ms = 0
        self.control.flushall()
        self.tell()

    def close(self) -> None:
        self.transport.close()
        self.control.close()

    def seconds(self) -> float:
        """Return the simulated time in seconds, as the monotonic clock of each client."""
        return self.now_ms / 1000

    @property
    def now_ms(self) -> int:
        """The time of the simulation (ms), whatever the clock of the server shows."""
        return self.time.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.time.now_ms = now_ms

    @property
    def server_ms(self) -> int:
        """Return the time of the server's clock (ms), which may differ from the simulated time."""
        return self.now_ms + self.skew_ms

    @property
    def clock(self) -> Clock:
        """Return the current time of the server's clock, and the latest time that the clock ever had."""
        return Clock(self._told_ms, self._latest_ms)

    def exchange(
        self, commands: Sequence[Sequence[Any]], last: str = "0-0"
    ) -> tuple[list[Any], list[Any]]:
        """Run commands one after another. Returns their replies, and the outbox entries after the id ``last``."""
        head: list[Sequence[Any]] = []
        if self._told_ms != self.server_ms:
            self._note_time()
            head.append(["SET", CLOCK_KEY, self._told_ms])
        tail = ["XRANGE", self._outbox, f"({last}", "+"]
        replies = self.transport.exchange([*head, *commands, tail])
        return replies[len(head) : -1], replies[-1]

    def _note_time(self) -> None:
        self._told_ms = self.server_ms
        self._latest_ms = max(self._latest_ms, self._told_ms)

    def tell(self) -> None:
        """Let the server know the time of its clock, and the name of its history."""
        self._note_time()
        self.control.mset({CLOCK_KEY: self._told_ms, REPLID_KEY: self.replid})

    def load_scripts(self, by_name: Scripts) -> None:
        """Load all scripts into the server, unless it still has them from the previous simulation.

        The server forgets the programs that are called by their digests. Otherwise the first simulation, which has to
        send their texts, would have more steps than the same one later.
        """
        self.control.execute_command("SCRIPT", "FLUSH")
        made = [by_name(path.stem) for path in sorted(lua_directory().glob("*.lua"))]
        listed = self.control.execute_command("FUNCTION", "LIST")
        known = {library[b"library_name"] for library in listed}
        if not {script.function.encode() for script in made} <= known:
            for script in made:
                self.control.execute_command(*script.loading)

    # What happens to it.

    def become_another(self, rng: random.Random) -> None:
        """Promote a replica that has all data. Its clock may be ahead or behind."""
        self.replid = f"{rng.getrandbits(160):040x}"
        self.skew_ms += rng.choice((0, 0, -4_000, 700))
        self.tell()
        forget_memories(self.control)

    def dump(self) -> Dump:
        """Return all keys of queues in Redis, each with its value in the form of DUMP."""
        keys = self.control.keys(f"{DEFAULT_PREFIX}:*")
        return [(key, self.control.dump(key)) for key in sorted(keys)]

    def come_back(self, rng: random.Random, dump: Dump) -> None:
        """Restart the server with older data, as from an old snapshot or after the promotion of a lagging replica."""
        self.control.flushall()
        for key, value in dump:
            self.control.restore(key, 0, value)
        self.become_another(rng)

    def forget_scripts(self) -> None:
        self.control.execute_command("FUNCTION", "FLUSH")
        self.control.execute_command("SCRIPT", "FLUSH")
