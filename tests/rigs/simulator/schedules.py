"""The schedules of a simulation. Workers declare and fire them, and the operator changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rq_core import errors
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration, Instant, tick
from rq_core.worker.ticker import instants_of
from tests.kit.fleet import QUEUE

if TYPE_CHECKING:
    import random

BEAT: Final = "beat"
"""The schedule that code declares."""
NAMES: Final = (BEAT, "tock")
CODES: Final = 3
"""The number of versions of the code. Each worker runs one version and declares its schedule."""
AGAIN: Final = 0.1
"""The chance that a worker declares its schedules again in a turn. Real workers do this every hour."""
PACES: Final = ((0, 10, 100), (0, 20, 200), (1, 30, 300))
"""The possible durations of a step, in ms."""
CLOCK_MS: Final = (-20_000, -5_000, 20_000)
"""The amounts (ms) by which the clock of the server is set to another time."""


def definition(code: int) -> Declaration:
    """Return the schedule that this version of the code declares."""
    rules: tuple[dict[str, Any], ...] = (
        {"every": 2.0, "overlap": "skip"},
        {"every": 3.0, "overlap": "replace", "spread": 1.5},
        {"every": 1.0, "overlap": "queue", "catch_up": "skip", "grace": 2.0},
    )
    return Declaration.of(_job(), recurrence(BEAT, **rules[code]))


def _job() -> NewJob:
    return NewJob("-", QUEUE, profile("a"), '{"thread":false}')


def declare(client: Client, code: int) -> None:
    """Declare the schedule of this version of the code, as a worker does."""
    client.run(client.calls.schedules.put(QUEUE, [definition(code)], source="code"))


def serve(client: Client, worker: str) -> None:
    """Fire the due schedules, as a worker does. The worker may be killed between two round trips."""
    instants: list[Instant] = []
    while True:
        try:
            answer = client.run(tick(QUEUE, worker, instants))
        except errors.ResultsFull:
            return
        if not answer.due:
            return
        instants = instants_of(answer.due, answer.now_ms)


def change_something(client: Client, dice: random.Random) -> None:
    """Change a schedule at random, as an operator does."""
    calls, name = client.calls.schedules, dice.choice(NAMES)
    what = dice.choice(("put", "put", "pause", "resume", "resume", "resume", "remove", "run"))
    if what == "put":
        # Code does not replace what was set live.
        name = dice.choice((*NAMES, "tock", "tock", "tock"))
        rule = recurrence(
            name,
            every=dice.choice((1.0, 1.5, 4.0)),
            overlap=dice.choice(("skip", "allow", "queue", "replace")),
            catch_up=dice.choice(("latest", "skip")),
            grace=dice.choice((None, 0.5, 3.0)),
            spread=dice.choice((None, None, 2.0)),
        )
        client.run(calls.put(QUEUE, [Declaration.of(_job(), rule)]))
    elif what == "run":
        try:
            client.run(calls.run(QUEUE, name))
        except errors.ResultsFull:
            return
    else:
        client.run(calls.change(QUEUE, name, what))


def remove_all(client: Client) -> None:
    """Remove all schedules."""
    for name in client.run(client.calls.schedules.stored(QUEUE)):
        client.run(client.calls.schedules.change(QUEUE, name, "remove"))
