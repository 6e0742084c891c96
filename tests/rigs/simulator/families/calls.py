"""The random calls of parents and children. The id of a parent determines them, so that each run makes the same
calls."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from rq_core import App
from rq_core.app.durable.items import JobCall, least
from rq_core.model.job import Claim, NewJob, profile, read_spec
from rq_core.model.table.machine import Priority
from tests.rigs.simulator.families.shards import PARENTS, PARTS

PART: Final = "part"
"""The name of the task of all children."""
COUNTS: Final = (0, 1, 1, 2, 2, 3, 5)
NEEDED: Final = (0, 0.5, 0.5, 1.0)
"""The possible values of ``min_success``."""
SLEEPS_MS: Final = (100, 600)
EXPIRES_S: Final = (None, None, None, None, 0.3, 2.0)
DELAYS_S: Final = (None, None, None, 0.2)


@cache
def _task() -> Any:
    """Return the task of the children."""
    app = App("redis://127.0.0.1:1/0")

    @app.task(name=PART, queue=PARTS)
    def part(tag: str, index: int, moves: list[str]) -> list[Any]:
        """Do nothing: a simulated worker runs the job."""
        raise AssertionError(f"{tag} {index} {moves}: simulated handlers do its work")

    return part


def make_parent(dice: random.Random, job_id: str) -> NewJob:
    """Return a random job that runs children. Its arguments list the calls that its handler makes."""
    made = profile("gather", Priority.NORMAL, dice.choice((1, 2, 3)), dice.choice((1, 3)))
    moves = _moves(dice, dice.choice((1, 1, 2, 3)))
    return NewJob(job_id, PARENTS, made, json.dumps({"moves": moves}, separators=(",", ":")))


def _moves(dice: random.Random, count: int) -> list[str]:
    found = [_map(dice)]
    for _ in range(count - 1):
        kind = dice.choice(("map", "map", "run", "begun", "sleep"))
        said = {"map": _map(dice), "sleep": f"sleep {dice.choice(SLEEPS_MS)}"}
        found.append(said.get(kind, kind))
    dice.shuffle(found)
    return found


def _map(dice: random.Random) -> str:
    return f"map {dice.choice(COUNTS)} {dice.choice(NEEDED)}"


def moves_of(claim: Claim) -> list[str]:
    """Return the calls that the handler of this claim makes."""
    found: list[str] = json.loads(read_spec(claim.spec).args_json)["moves"]
    return found


def is_map(move: str) -> bool:
    """Return whether the call runs children."""
    return move.startswith(("map ", "run"))


def size_of(move: str) -> int:
    """Return the number of children that the call runs."""
    return int(move.split()[1]) if move.startswith("map ") else 1


def needed_of(move: str) -> float:
    """Return how many children of the call must succeed, as a share."""
    return float(move.split()[2]) if move.startswith("map ") else 1.0


def has_enough(move: str, succeeded: int) -> bool:
    """Return whether this number of successes is enough for the call."""
    return succeeded >= least("m", needed_of(move), size_of(move))


def tag_of(job_id: str, number: int) -> str:
    """Return the text by which a child knows the call of its parent. ``number`` is the call's position, from 0."""
    return f"{job_id}/{number}"


def children_of(job_id: str, number: int, move: str) -> list[JobCall[Any]]:
    """Return the calls of the children of one call. ``number`` is the call's position, from 0."""
    return [_child(tag_of(job_id, number), index) for index in range(size_of(move))]


def _child(tag: str, index: int) -> JobCall[Any]:
    dice = random.Random(f"{tag} {index}")
    moves: list[str] = []
    if tag.count("/") == 1 and not tag.startswith("f-") and dice.random() < 0.12:
        # The child runs children itself. Theirs run none: the tag of a child's call begins with the child's id.
        moves = _moves(dice, dice.choice((1, 2)))
    options = {
        "expires": dice.choice(EXPIRES_S),
        "delay": dice.choice(DELAYS_S),
        "max_attempts": dice.choice((1, 2)),
        "max_losses": dice.choice((1, 3)),
    }
    if options["expires"] == 0.3:
        options["delay"] = None
    prepared = _task().with_options(**{k: v for k, v in options.items() if v is not None})
    found: JobCall[Any] = prepared.call(tag, index, moves)
    return found


def place_of(claim: Claim) -> tuple[str, int]:
    """Return the tag and the index of a child."""
    args = json.loads(read_spec(claim.spec).args_json)
    return args["tag"], args["index"]


def launches_of(moves: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Return the calls that run children, with their positions, by the names under which they are saved."""
    found: dict[str, tuple[int, str]] = {}
    for number, move in enumerate(moves):
        if is_map(move):
            count = len(found) + 1
            found["parts" if count == 1 else f"parts-{count}"] = number, move
    return found
