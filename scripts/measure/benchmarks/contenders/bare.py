"""The floor (lower bound of the cost) of the benchmark: redis-py with hiredis sends the same bytes as rq-core, but
without a queue.

- one: a script that does nothing, called with the arguments of rq-core's `enqueue` of one job
- bulk: the same in rq-core's calls of many jobs (`BENCH_KIND=pipeline`: LPUSH of each spec, in pipelines of 100)
- paced: LPUSH, for a worker that waits in BLPOP: a bare wake
- work: LMPOP of 100, JSON read, handler called (`BENCH_KIND=wake`: BLPOP)
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import redis
from contender import TEXT, handler, kind, run, url

LIST = "bare"
PIPELINE = 100
SCRIPT = "return {'ok'}"


def spec(number: int) -> str:
    return json.dumps(
        {"task": "t", "args": {"number": number, "text": TEXT}}, separators=(",", ":")
    )


class Recorder:
    """Records the commands that rq-core sends for enqueues. They are then sent to a script that does nothing."""

    def __init__(self, connection: redis.Connection) -> None:
        connection.send_command("SCRIPT", "LOAD", SCRIPT)
        self.sha = connection.read_response()
        self.seen: list[list[Any]] = []

    def commands(self, count: int) -> list[list[Any]]:
        from rq_core import App
        from rq_core.connections.client import Client
        from rq_core.connections.transport import PoolTransport

        recorder = self

        class Spy(PoolTransport):
            def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
                recorder.seen += [list(command) for command in commands]
                return super().exchange(commands, *how)

        app = App(url())

        @app.task(queue="bare", name="async")
        async def noop(number: int, text: str) -> None:
            """Do nothing. This task never runs."""

        jobs = [noop.job(number=n, text=TEXT) for n in range(count)]
        with Client(url(), transport=Spy(url())) as client:
            client.run(client.calls.enqueue.many(jobs[:1]))
            self.seen.clear()
            client.run(client.calls.enqueue.many(jobs))
        app.close()
        return [["EVALSHA", self.sha, *command[2:]] for command in self.seen]


connection: Any = redis.ConnectionPool.from_url(url(), decode_responses=True).get_connection()
one_call: list[Any] = []
bulk_calls: list[list[Any]] = []


def ready() -> None:
    if kind() == "async":
        recorder = Recorder(connection)
        one_call[:] = recorder.commands(1)[0]
        bulk_calls[:] = recorder.commands(1_000)


def one(number: int) -> None:
    if kind() == "wake":
        connection.send_command("LPUSH", LIST, spec(number))
    else:
        connection.send_packed_command(connection.pack_command(*one_call))
    connection.read_response()


def bulk(numbers: Sequence[int]) -> None:
    if kind() == "async":
        for call in bulk_calls:
            connection.send_packed_command(connection.pack_command(*call))
            connection.read_response()
        return
    for at in range(0, len(numbers), PIPELINE):
        commands = [("LPUSH", LIST, spec(n)) for n in numbers[at : at + PIPELINE]]
        connection.send_packed_command(connection.pack_commands(commands))
        for _ in commands:
            connection.read_response()


def work() -> None:
    note = handler()
    while True:
        if kind() == "wake":
            connection.send_command("BLPOP", LIST, 0)
            note(**json.loads(connection.read_response(timeout=None)[1])["args"])
            continue
        connection.send_command("LMPOP", 1, LIST, "RIGHT", "COUNT", PIPELINE)
        found = connection.read_response()
        if found is None:
            time.sleep(0.05)
            continue
        for text in found[1]:
            note(**json.loads(text)["args"])


if __name__ == "__main__":
    run(one=one, bulk=bulk, work=work, ready=ready)
