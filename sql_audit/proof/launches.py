"""Reads from the log which children durable jobs have enqueued, and what the jobs have saved about these children. No
I/O.

A *launch* is one call of ``map`` or ``run``, or one node of a flow. No event names the children. Their ids are computed
from the box and the name of the launch; their number and their queue are found by the digest of the entry that enqueued
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rq_core.model.durable.boxes import MAP_PREFIX
from rq_core.model.durable.children import (
    CHILDREN_MAX,
    child_id,
    life_of_children,
    pack_queue,
    pack_queues,
    read_child_wait,
    read_queues,
)
from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from sql_audit.proof.event_details import facts_in
from sql_audit.store.job_rows import EventRow

_SAVED: Final = str(Event.STEP_SAVED)
_ITEM: Final = re.compile(r"(.+)=(0|[1-9]\d{0,3})")
_JOIN: Final = "=join"
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_NO_CHILDREN: Final = digest_of(pack_queue(None, 0))


class SavedItem(NamedTuple):
    """An event ``step_saved`` that may have a child's result."""

    row: EventRow
    entry: int
    """The number of the entry in the box."""
    digest: str | None
    """The digest of the result; None: the result is not kept."""


class WaitForChild(NamedTuple):
    """The last event ``step_begun`` with which a job began to wait for one child."""

    row: EventRow
    fence: OutboxId
    """The fence of the claim that began the wait."""


@dataclass(slots=True)
class Launch:
    """The events about the children of one launch of a durable job."""

    life: str
    """The id of the parent's box."""
    name: str
    row: EventRow | None = None
    """The event that says that all children are enqueued; None: the log has no such event."""
    entry: int = 0
    """The number of the entry that enqueues the children. 0: the log does not have this entry."""
    digest: str = ""
    """The digest of the value of the entry that enqueues the children. The value has the children's number and
    queues."""
    queues: Sequence[str] = ()
    """The queue of each child. Empty if the log does not show the queues."""
    items: dict[int, SavedItem] = field(default_factory=dict)
    """The saved results, by the child's position."""
    join: EventRow | None = None
    """The event that saves how the children that did not succeed have ended. All children have ended before it."""
    waits: dict[int, WaitForChild] = field(default_factory=dict)
    """The waits for children, by the child's position."""
    made_of: str = ""
    """If a fork has copied the launch: the id of the origin's box, from which the children's ids are computed.
    Otherwise empty."""

    def child(self, index: int) -> str:
        """Return the id of the child at a position."""
        return child_id(self.made_of or self.life, self.name, index)

    @property
    def has_none(self) -> bool:
        """True if the job has enqueued no children."""
        return self.digest == _NO_CHILDREN

    @property
    def is_unknown(self) -> bool:
        """True if the job has enqueued all its children, and the log does not show their number and queues.

        It is False for a launch that a fork has copied, and for a launch without children.
        """
        return not (self.row is None or self.queues or self.made_of or self.has_none)

    def fits(self, queues: Sequence[str]) -> bool:
        """Return whether the job has enqueued its children in these queues."""
        return digest_of(pack_queues(queues)) == self.digest


class Launches(dict[tuple[str, str], Launch]):
    """The launches of one queue's durable jobs, by the id of the box and the name of the launch."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: set[str] = set()
        """The ids of the jobs that have begun to enqueue children."""
        self._by_number: dict[tuple[str, int], Launch] = {}
        """The launches by the id of the box and the number of the entry that enqueues the children."""

    def read(self, row: EventRow) -> None:
        """Read an event ``step_begun`` or ``step_saved``. An event that cannot be read is ignored: the replay reports
        it."""
        with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            facts = facts_in(row[10])
            name, is_saved = facts["name"], row[4] == _SAVED
            if name.startswith(MAP_PREFIX):
                self._read_launch(row, facts, name.removeprefix(MAP_PREFIX), is_saved)
            elif not is_saved:
                self._read_wait(row, facts, name)
            elif name.endswith(_JOIN):
                self._of(facts["life"], name.removesuffix(_JOIN)).join = row
            elif (named := _ITEM.fullmatch(name)) is not None:
                digest = facts.get("digest")
                kept = digest if _DIGEST.fullmatch(str(digest)) else None
                items = self._of(facts["life"], named[1]).items
                items[int(named[2])] = SavedItem(row, facts["entry"], kept)

    def _of(self, life: str, name: str) -> Launch:
        launch = self.get((life, name))
        if launch is None:
            launch = self[life, name] = Launch(life, name)
        return launch

    def _read_launch(
        self, row: EventRow, facts: Mapping[str, Any], name: str, is_saved: bool
    ) -> None:
        launch = self._of(facts["life"], name)
        self.parents.add(row[6])
        launch.entry = facts["entry"]
        self._by_number[launch.life, launch.entry] = launch
        if is_saved:
            launch.row, launch.digest = row, str(facts.get("digest"))
            value = facts.get("value")
            if value is None:
                return
            made_of = life_of_children(value, launch.life)
            if made_of == launch.life:
                launch.queues = read_queues(value)
            else:
                # The children are those of another launch. Only the results that the fork has copied are compared.
                launch.made_of = made_of

    def _read_wait(self, row: EventRow, facts: Mapping[str, Any], name: str) -> None:
        place = read_child_wait(name)
        launch = None if place is None else self._by_number.get((facts["life"], place[0]))
        if launch is not None and place is not None:
            launch.waits[place[1]] = WaitForChild(row, OutboxId.parse(facts["fence"]))

    def unknown(self) -> list[Launch]:
        """Return the launches whose children's number and queues are not known yet."""
        return [launch for launch in self.values() if launch.is_unknown]


def fill_queues(launches: Iterable[Launch], queue: str) -> None:
    """Set the queues of each launch whose children are all in ``queue``. The launch's digest shows whether they are."""
    wanted: dict[str, list[Launch]] = {}
    for launch in launches:
        wanted.setdefault(launch.digest, []).append(launch)
    for count in range(1, CHILDREN_MAX + 1):
        if not wanted:
            return
        for launch in wanted.pop(digest_of(pack_queue(queue, count)), ()):
            launch.queues = [queue] * count


def positions(launches: Iterable[Launch]) -> Iterator[tuple[str, Launch, int]]:
    """Yield the id, the launch and the position of each child that a job has enqueued, or whose result the job has
    saved.
    """
    for launch in launches:
        count = len(launch.queues)
        for index in range(count):
            yield launch.child(index), launch, index
        for index in launch.items:
            if index >= count:
                yield launch.child(index), launch, index
