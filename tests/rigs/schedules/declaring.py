"""Lets old and new code declare one schedule at the same time.

Only one version may remain in each round, and the old definition may not come back.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from queue import Empty
from typing import Any, Final

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.operations import Operations

QUEUE: Final = "declared"
NAME: Final = "nightly"
PROCESSES: Final = 2
CLIENTS: Final = 50
OLD_EVERY: Final = 5
"""One client in OLD_EVERY runs the code of the previous round."""
PATIENCE_S: Final = 120.0


@dataclass
class Declared:
    """The figures of all rounds, and the problems that they found."""

    rounds: int
    clients: int
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        return (
            f"{self.clients} clients in {PROCESSES} processes, {self.rounds:,} rounds,"
            f" {sum(self.outcomes.values()):,} declarations: {dict(self.outcomes.most_common())}"
        )


def declare(url: str, rounds: int, clients: int = CLIENTS) -> Declared:
    """Let all clients declare a schedule at once, in each round. Then check the stored schedule.

    Most clients declare a new definition, and some declare the definition of the round before.
    """
    found = Declared(rounds, clients)
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(PROCESSES + 1), context.Queue()
    mine = range(clients)
    processes = [
        context.Process(
            target=_work,
            args=(url, rounds, list(mine[at::PROCESSES]), barrier, answers),
            daemon=True,
        )
        for at in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    try:
        with Client(url) as client:
            # Without an audit database the outbox keeps recent entries only.
            client.run(client.calls.audit.attach(QUEUE, "rig"))
            for number in range(rounds):
                barrier.wait(PATIENCE_S)  # all begin
                barrier.wait(PATIENCE_S)  # all have declared
                if len(found.problems) < 10:
                    found.problems += _wrong(client, number)
            for _ in processes:
                found.outcomes += answers.get(timeout=PATIENCE_S)
            found.problems += _wrong_in_log(client, rounds)
    except Empty:
        found.problems.append("a process did not end")
    finally:
        barrier.abort()
        for process in processes:
            process.join(10)
            process.kill()
    if found.outcomes["changed"] != rounds:
        found.problems.append(f"{found.outcomes['changed']:,} declarations changed something")
    return found


def definition(number: int) -> Declaration:
    """Return the schedule that the code of this round declares."""
    job = NewJob("-", QUEUE, profile("report"), f'{{"round":{number}}}')
    return Declaration.of(job, recurrence(NAME, every=3_600 + number % 7))


def _work(url: str, rounds: int, numbers: Sequence[int], barrier: Barrier, answers: Any) -> None:
    asyncio.run(_declare(url, rounds, numbers, barrier, answers))


async def _declare(
    url: str, rounds: int, numbers: Sequence[int], barrier: Barrier, answers: Any
) -> None:
    """Declare the schedule with some clients in each round. A barrier lets both processes begin together."""
    clients = {
        n: AsyncClient(url, calls=Operations(Delivery(url=url, name=f"w-{n}"))) for n in numbers
    }
    outcomes: Counter[str] = Counter()
    for number in range(rounds):
        new, old = definition(number), definition(max(number - 1, 0))
        barrier.wait(PATIENCE_S)
        changes = await asyncio.gather(
            *(
                client.run(
                    client.calls.schedules.put(
                        QUEUE, [old if n % OLD_EVERY == 0 else new], source="code"
                    )
                )
                for n, client in clients.items()
            )
        )
        outcomes.update(change[NAME].outcome for change in changes)
        barrier.wait(PATIENCE_S)
    answers.put(outcomes)
    for client in clients.values():
        await client.close()


def _wrong(client: Client, number: int) -> list[str]:
    """Return as sentences how the stored schedule differs from this round's definition."""
    keys = queue_keys(QUEUE)
    entries, ticks = client.run(
        client.calls.delivery.ask(
            [["HGETALL", keys("schedules")], ["ZRANGE", keys("ticks"), 0, -1]]
        )
    )
    words = (
        entries
        if isinstance(entries, dict)
        else dict(zip(entries[::2], entries[1::2], strict=True))
    )
    found, wanted = [], definition(number)
    if set(words) != {NAME, f"{NAME}|job"} or ticks != [NAME]:
        found.append(f"round {number}: {sorted(words)} are stored, with ticks {ticks}")
    if not words.get(NAME, "").startswith(f"on v={number + 1} "):
        found.append(f"round {number}: the version is not {number + 1}: {words.get(NAME)}")
    if words.get(f"{NAME}|job") != wanted.packed or not words[NAME].endswith(wanted.rule.to_json()):
        found.append(f"round {number}: another definition came back: {words}")
    return found


def _wrong_in_log(client: Client, rounds: int) -> list[str]:
    """Return an error if the log does not have exactly one change of the schedule for each round."""
    look = ["XRANGE", queue_keys(QUEUE)("outbox"), "-", "+"]
    (entries,) = client.run(client.calls.delivery.ask([look]))
    texts = [dict(zip(words[::2], words[1::2], strict=True)) for _, words in entries]
    changes = [each["data"] for each in texts if each["type"] == "schedule_changed"]
    if len(changes) != rounds:
        return [f"the log has {len(changes):,} changes of {rounds:,}"]
    return []
