"""The children of a durable job. The durable job, their parent, enqueues them and waits for their ends.

A child's id is computed from the id of its parent's box. So a parent that runs again does not enqueue a second child. A
header of the child names the parent's wait. The worker that ends the child sends a signal to this wait.

>>> child_wait(3, 17)
'rq_core.child.3.17'
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import LIFE_PATTERN, MAP_PREFIX, OWN_PREFIX, StepEntry
from rq_core.model.headers import PARENT_HEADER
from rq_core.model.keys import is_name

CHILDREN_MAX: Final = 4_000
"""Maximum number of children of one ``map``. (The box of the parent has an entry for each child that succeeded.)"""
KEEP_MS: Final = 86_400_000
"""Minimum ms for which Redis keeps a child's outcome after its end, and remembers the child's id after its enqueue."""
CHILD_PREFIX: Final = f"{OWN_PREFIX}child."
"""The prefix of the name of a wait with which a parent waits for one child."""
LAUNCH_PREFIX: Final = f"{OWN_PREFIX}launch."
"""The prefix of the name of a sleep. A parent sleeps if it could not enqueue its children yet."""

ORPHANED: Final = "the parent was cancelled"
"""The reason that the log shows for children that a worker cancels because their parent was cancelled."""


class Parent(NamedTuple):
    """The parent of a child: the job and the wait to which the child's end must be reported."""

    queue: str
    id: str
    wait: str
    """The name of the parent's wait for this child."""
    child: str = ""
    """Id of the child."""
    life: str = ""
    """The id of the parent's box (its saved steps). Redis refuses the signal if the job with the parent's id has
    another box."""


class Child(NamedTuple):
    """A child, as the saved entries of its parent's box describe it."""

    map: str
    """Name of the ``map`` or ``run`` that has enqueued the child."""
    number: int
    """The child's position among the children of the map, from 0."""
    queue: str
    id: str
    is_saved: bool
    """True if the parent has saved the child's result."""
    is_over: bool = False
    """True if the parent no longer waits for this child's end. Then the parent has saved the child's result, or the
    outcomes of all children of the map that did not succeed."""


def child_id(life: str, launch: str, index: int) -> str:
    """Return the id of a child. ``life`` is the id of the parent's box, and ``launch`` the name of the ``map`` or
    ``run`` that enqueues the child.

    ``index`` is the child's position in this ``map`` or ``run``, from 0.
    """
    return "f-" + hashlib.sha256(f"{life}/{launch}/{index}".encode()).hexdigest()[:30]


def child_wait(number: int, index: int) -> str:
    """Return the name of a parent's wait for a child. ``number`` is the number of the entry, in the parent's box, that
    records the enqueue of the children. ``index`` is the child's position, from 0.
    """
    return f"{CHILD_PREFIX}{number}.{index}"


def read_child_wait(name: str) -> tuple[int, int] | None:
    """Return the number of the entry that records the enqueue of a child, and the child's position. ``name`` is the
    name of the wait for the child. Returns None for the name of any other entry.

    >>> read_child_wait("rq_core.child.3.17#2")
    (3, 17)
    """
    number, dot, index = name.removeprefix(CHILD_PREFIX).partition("#")[0].partition(".")
    if not name.startswith(CHILD_PREFIX) or not dot or not (number + index).isdigit():
        return None
    return int(number), int(index)


def launch_name(launch: str) -> str:
    """Return the name of the entry with which a parent enqueues the children of a ``map`` or ``run``."""
    return f"{MAP_PREFIX}{launch}"


def pack_queues(queues: Sequence[str], life: str | None = None) -> str:
    """Return the queues of a parent's children as JSON. This is the value of the entry that records the enqueue of the
    children.

    ``life`` is the id of the box in which the children's map began; None: the box that has the entry.

    >>> pack_queues(["pages", "pages"])
    '{"count":2,"queue":"pages"}'
    """
    said: Any = list(queues)
    if len(set(queues)) < 2:
        said = {"count": len(queues), "queue": queues[0] if queues else None}
    if life is not None:
        said = (said if isinstance(said, dict) else {"queues": said}) | {"life": life}
    return json.dumps(said, separators=(",", ":"))


def pack_queue(queue: str | None, count: int) -> str:
    """Return the JSON of ``pack_queues`` for ``count`` children in one queue. With a count of 0 there is no queue."""
    return json.dumps({"count": count, "queue": queue}, separators=(",", ":"))


def read_queues(value: str | None) -> list[str]:
    """Return the queue of each child, from the value of the entry that enqueued the children. Raises ValueError if the
    value is not valid."""
    said: Any = json.loads(value or "null")
    if isinstance(said, dict) and "queues" in said:
        said = said["queues"]
    elif isinstance(said, dict):
        count = said.get("count")
        # A forged number must not take all memory.
        if type(count) is not int or not 0 <= count <= CHILDREN_MAX:
            raise ValueError(f"the entry says that there are {count!r} children")
        said = [said.get("queue")] * count
    if not isinstance(said, list) or not all(is_name(each) for each in said):
        raise ValueError("the entry does not name the children's queues")
    return said


def life_of_children(value: str | None, life: str) -> str:
    """Return the id of the box from which the children's ids are computed. ``value`` is the value of the entry that
    enqueued the children, and ``life`` the id of the box that has this entry.

    The two boxes differ if a fork has copied the entry.
    """
    said: Any = json.loads(value or "null")
    found = said.get("life") if isinstance(said, dict) else None
    return found if isinstance(found, str) and re.fullmatch(LIFE_PATTERN, found) else life


def children_in(life: str, entries: Iterable[StepEntry]) -> list[Child]:
    """Return the children that a job has enqueued, from the entries of its box."""
    entries = list(entries)
    saved = {entry.name for entry in entries if entry.is_saved}
    found: list[Child] = []
    for entry in entries:
        launch = entry.name.removeprefix(MAP_PREFIX)
        if launch == entry.name or not entry.is_saved:
            continue
        is_joined = join_name(launch) in saved
        with suppress(ValueError, TypeError):
            made_of = life_of_children(entry.value, life)
            for n, queue in enumerate(read_queues(entry.value)):
                is_saved = item_name(launch, n) in saved
                over = is_saved or is_joined
                found.append(Child(launch, n, queue, child_id(made_of, launch, n), is_saved, over))
    return found


def item_name(launch: str, index: int | str) -> str:
    """Return the name of the entry, in the box of a parent, that has the result of a successful child. With an empty
    index, return the common beginning of these names.
    """
    return f"{launch}={index}"


def join_name(launch: str) -> str:
    """Return the name of the entry, in the box of a parent, that has the outcomes of the children that did not
    succeed.
    """
    return f"{launch}=join"


def parent_header(queue: str, job_id: str, wait: str, life: str, launch: str) -> str:
    """Return the value of the header that names a child's parent.

    ``life`` is the id of the parent's box, and ``launch`` the name of the ``map`` or ``run`` that enqueues the child.
    """
    return f"{wait} {queue} {job_id} {life} {launch}"


def parent_of(headers: Mapping[str, str], child: str) -> Parent | None:
    """Return the parent that waits for the job ``child`` with these headers; None if no parent waits for the job.

    Any producer can write the header that names a parent. So this function checks that ``child`` is the id of the child
    that the header describes. Redis checks the id of the parent's box when it gets the signal about the child's end.
    """
    parts = headers.get(PARENT_HEADER, "").split(" ")
    if len(parts) != 5 or not all(parts):
        return None
    wait, queue, job_id, life, launch = parts
    place = read_child_wait(wait)
    # The signal travels with other calls of the worker, so no text of a producer may make it invalid.
    if place is None or wait != child_wait(*place) or not is_name(queue) or not is_name(job_id):
        return None
    if not re.fullmatch(LIFE_PATTERN, life) or child != child_id(life, launch, place[1]):
        return None
    return Parent(queue, job_id, wait, child, life)
