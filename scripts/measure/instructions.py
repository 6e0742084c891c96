"""Counts the processor instructions per call of the most frequent Lua scripts. Unlike times, the counts do not change
on a busy machine.

Redis runs under callgrind. After a warm-up, the instructions are counted in groups of calls (windows), and the median
is kept. The hash seeds of Redis still cause differences of about 1 %.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import redis

from rq_core.model.keys import queue_keys
from rq_core.model.limits.scopes import lane_name
from rq_core.model.result_encoding import pack_result, unpack_result
from rq_core.scripts.script import function

TABLE: Final = Path(__file__).with_suffix(".toml")
SLACK: Final = 0.02
WINDOWS: Final = 5
DEPTH: Final = 300
"""The number of jobs that wait during the measurement."""
TENANTS: Final = 1_000
NEVER: Final = "1000000 version=1 from=live"
"""A cap that is never reached."""
CASES: Final = {
    "plain": (lambda _n: [], {}),
    "one cap": (lambda _n: ["task=t"], {"task=t": NEVER}),
    "two caps": (
        lambda n: ["task=t", f"tenant=k{n % TENANTS}"],
        {"task=t": NEVER, "tenant": NEVER},
    ),
    "unique": (lambda _n: [], {}),
    "kept": (lambda _n: [], {}),
}
CALLS: Final = {1: 150, 100: 15}
"""Number of jobs per call → number of calls in a window (group of calls that is counted together)."""
SCRIPTS: Final = ("enqueue", "claim", "complete", "turn")
LIFE: Final = ("enqueue", "turn")
"""The scripts whose counts add up to the cost of one job, for workers that have a job to report at each claim."""

_COMMENT: Final = re.compile(r"--[^\n]*")
_OWN_NAME: Final = re.compile(r"rqc_\w+")
_KINDS: Final = '[[2,0,"task=t","\\"t\\",\\"normal\\",3,3,\\"",""]]'
_TIED: Final = {
    "unique": _KINDS.replace(',""]]', ',"",0,{"unique":"keep"}]]'),
    # So short that a sweep forgets as many as a turn keeps.
    "kept": _KINDS.replace(',""]]', ',"",0,{"keep":1}]]'),
}
_VALUE: Final = pack_result('{"number":12345,"text":"0123456789012345678901234567890123456789"}')
_SPEC: Final = (
    '{"task":"t","args":{"number":12345,"text":"0123456789012345678901234567890123456789"}}'
)
_COLLECT: Final = """#!lua name=collect
redis.register_function('collect', function() return collectgarbage('collect') end)"""
"""A Redis function that collects Lua's garbage. It is called before each window (group of counted calls), because
automatic collection happens at different moments in each run."""
_FIRST_JOB: Final = 2
"""The number of words before the first job in the reply to a claim."""
_JOB_WORDS: Final = 2
"""The number of words of each job in the reply to a claim."""


def digest() -> str:
    """Return a digest of the measured scripts without comments. The file of counts has this digest, to show whether it
    is outdated."""
    texts = (_COMMENT.sub("", function(name).text) for name in SCRIPTS)
    code = "".join(_OWN_NAME.sub("", text) for text in texts)
    return hashlib.sha1("".join(code.split()).encode(), usedforsecurity=False).hexdigest()


class Server:
    """A Redis server that runs under callgrind."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        socket = directory / "socket"
        self._process = subprocess.Popen(
            [  # noqa: S607 - Debian's programs, from PATH
                # What the server does between commands, and how often, is the machine's doing.
                "valgrind", "--tool=callgrind", "--collect-atstart=no",
                "--toggle-collect=processCommand", f"--callgrind-out-file={directory}/counts",
                f"--log-file={directory}/valgrind", "redis-server", "--port", "0",
                "--unixsocket", str(socket), "--save", "", "--dir", str(directory),
                "--logfile", str(directory / "log"), "--hz", "1", "--activerehashing", "no",
            ],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._client = redis.Redis(unix_socket_path=str(socket), socket_timeout=60)
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit("instructions: redis-server under valgrind did not start")
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return bool(self._client.ping())
        except redis.ConnectionError:
            return False

    def __call__(self, *command: Any) -> Any:
        """Send a command to the server, and return the reply."""
        return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def version(self) -> str:
        return str(self._client.info("server")["redis_version"])

    def counted(self, work: Callable[[], None]) -> int:
        """Return the number of processor instructions that the server executes during ``work``."""
        self._control("--zero")
        work()
        before = set(self.directory.glob("counts.*"))
        self._control("--dump")
        (dump,) = set(self.directory.glob("counts.*")) - before
        found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])

    def _control(self, what: str) -> None:
        asked = subprocess.Popen(
            ["callgrind_control", what, str(self._process.pid)],  # noqa: S607 - likewise
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while asked.poll() is None:
            # A server that sleeps takes no note. What wakes it is counted too, and more often on a busy machine, where
            # callgrind_control takes longer: so it is woken seldom.
            time.sleep(0.1)
            self("PING")
        assert asked.returncode == 0

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(30)


@contextmanager
def serving() -> Iterator[Server]:
    """Yield a Redis server under callgrind."""
    directory = Path(tempfile.mkdtemp(prefix="rq-core-instructions-"))
    server = Server(directory)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory)


def empty(server: Server) -> None:
    """Empty the server, and load the functions of the scripts and the one that collects Lua's garbage."""
    server("FLUSHALL", "SYNC")
    server("FUNCTION", "FLUSH", "SYNC")
    server("FUNCTION", "LOAD", _COLLECT)
    for name in ("handshake", *SCRIPTS):
        server(*function(name).loading)


class Life:
    """The jobs of one queue while they go through enqueue, claim and complete, or through enqueue and turns.

    A turn reports the jobs that the previous turn has claimed, and claims the next ones.
    """

    def __init__(
        self, server: Server, case: str, queue: str, facts_carried: Collection[str] = ()
    ) -> None:
        """Set up the queue on the server. ``case``: one of CASES, for example with caps. ``facts_carried``: fields of
        `meta` for which calls pass further keys."""
        self._server = server
        self._facts_carried = facts_carried
        self._keys = queue_keys(queue)
        self._scopes, caps = CASES[case]
        self._unique, self._keeps = case == "unique", case == "kept"
        self._kinds = _TIED.get(case, _KINDS)
        self._jobs = self._number = 0
        self._held: list[list[tuple[str, str]]] = []
        server(*function("handshake").command(self._keys, by="c-1", floor=0))
        for name, value in caps.items():
            server("HSET", self._keys("caps"), name, value)
        # A lease so long that the slowness under callgrind is no outage, and one gate that is open.
        facts = {
            "lease_ms": 10**10,
            "no_reap_before": 0,
            "last_activity": round(time.time() * 1000),
        }
        if caps:
            facts["caps_by_task"] = 1
        for name, fact in facts.items():
            server("HSET", self._keys("meta"), name, fact)
        self.enqueue(100, DEPTH // 100)

    def _call(self, script: str, each: Sequence[tuple[Any, ...]] = (), **args: Any) -> list[bytes]:
        self._number += 1
        slot = f"c-4211-9f3a61c2d0be.{script}.1"
        made, args = function(script), {"slot": slot, "number": self._number, **args}
        tail = {}
        if self._keeps and made.has_tail:
            tail = {place: unpack_result(_VALUE) for place in range(1, len(each) + 1)}
        command = made.filled(
            made.head(self._keys, made.on_demand if self._keeps else self._facts_carried),
            args,
            each,
            tail,
        )
        reply: list[bytes] = self._server(*command)
        assert reply[0] == b"ok", reply
        return reply

    def enqueue(self, batch: int, calls: int) -> None:
        for _ in range(calls):
            records = []
            for _ in range(batch):
                self._jobs += 1
                scopes = self._scopes(self._jobs)  # type: ignore[no-untyped-call]
                lane = lane_name(2, scopes) if scopes else ""
                digest = "0123456789abcdef" * 2
                if self._unique:
                    digest += f" t/tenant={self._jobs}"
                records.append((f"{self._jobs:032x}", "1", digest, lane, _SPEC))
            by = {"by": "c-4211-9f3a61c2d0be", "spec_max": 0, "kinds": self._kinds}
            self._call("enqueue", records, **by)

    def _take(self, script: str, batch: int, held: Sequence[tuple[str, str]] = ()) -> None:
        bounds = {"limit": batch, "bytes_max": 1 << 20, "sweep_max": 250}
        reply = self._call(script, held, worker="w-4211-9f3a61c2d0be", **bounds)
        fence = reply[1].split()[3].decode()
        jobs = reply[_FIRST_JOB::_JOB_WORDS]
        assert len(jobs) == batch
        self._held.append([(job.decode().split()[0], fence) for job in jobs])

    def claim(self, batch: int, calls: int) -> None:
        for _ in range(calls):
            self._take("claim", batch)

    def turn(self, batch: int, calls: int) -> None:
        for _ in range(calls):
            self._take("turn", batch, self._held.pop(0))

    def complete(self, _batch: int, _calls: int) -> None:
        while self._held:
            reply = self._call("complete", self._held.pop(0), worker="w-4211-9f3a61c2d0be")
            assert reply == [b"ok"]


def measured(server: Server) -> Iterator[tuple[str, int]]:
    """Yield (name, count) for each row of the table: the instructions per call of a script, or for all calls of one
    job."""
    nothing = server.counted(lambda: None)
    for case in CASES:
        for batch, calls in CALLS.items():
            empty(server)
            life, turning = Life(server, case, "mail"), Life(server, case, "turning")
            turning.enqueue(batch, 1)
            turning.claim(batch, 1)
            found: dict[str, list[int]] = {script: [] for script in SCRIPTS}
            for window in range(-1, WINDOWS):
                for script in SCRIPTS:
                    if script == "turn":
                        turning.enqueue(batch, calls)
                    server("FCALL", "collect", 0)
                    lives = turning if script == "turn" else life
                    count = server.counted(partial(getattr(lives, script), batch, calls))
                    if window >= 0:
                        found[script].append(count)
            spent = {
                s: (statistics.median(counts) - nothing) / calls for s, counts in found.items()
            }
            for script in SCRIPTS:
                yield f"{script} of {batch}, {case}", round(spent[script])
            yield (
                f"life of a job, {batch} at a time, {case}",
                round(sum(spent[s] for s in LIFE) / batch),
            )


def written(counts: dict[str, int], version: str) -> str:
    """Return the text of the file with the counts."""
    lines = [
        "# Instructions of one call, counted by scripts/measure/instructions. Do not edit.",
        f'scripts = "{digest()}"',
        f'redis = "{version}"',
        "",
        "[counts]",
        *(f'"{name}" = {count}' for name, count in counts.items()),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Count instructions, or compare digests. Return the exit status."""
    if set(arguments) - {"--accept", "--check"}:
        sys.stderr.write("instructions: takes --accept or --check\n")
        return 2
    table = tomllib.loads(TABLE.read_text(encoding="utf-8")) if TABLE.is_file() else {}
    if "--check" in arguments:
        if table.get("scripts") == digest():
            return 0
        sys.stderr.write(
            "instructions: the scripts have changed: run scripts/measure/instructions\n"
        )
        return 1
    before, counts, dearer = table.get("counts", {}), {}, []
    with serving() as server:
        version = server.version()
        for name, count in measured(server):
            counts[name] = count
            change = count / before.get(name, count) - 1
            print(f"{name:28} {count:12,} {change:+8.1%}", flush=True)
            if change > SLACK:
                dearer.append(name)
    if dearer and "--accept" not in arguments:
        sys.stderr.write(f"instructions: more than {SLACK:.0%} dearer: {', '.join(dearer)}\n")
        return 1
    TABLE.write_text(written(counts, version), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
