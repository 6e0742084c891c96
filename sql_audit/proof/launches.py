"""Reads from the log which children each durable job has enqueued, and what the job has saved about them. No I/O.

A *launch* is one call of ``map`` or ``run``, or one node of a flow. No event names the children. Their ids are computed
from the name of the launch and the id of the job's box of saved steps. Their number and their queues are found by the
digest of the saved entry that enqueued them.
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
from rq_core.model.lib.text import counted
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from sql_audit.proof.event_details import facts_in
from sql_audit.store.job_rows import EventRow

_KEPT: Final = 9
"""Number of columns of an event that are kept: all in front of the details, which may be long."""
_SAVED: Final = str(Event.STEP_SAVED)
_ITEM: Final = re.compile(r"(.+)=(0|[1-9]\d{0,3})")
_JOIN: Final = "=join"
_DIGEST: Final = re.compile(r"[0-9a-f]{32}")
_NO_CHILDREN: Final = digest_of(pack_queue(None, 0))


class SavedItem(NamedTuple):
    """A ``step_saved`` event of a durable job that may save a child's result."""

    row: EventRow
    entry: int
    """The number of the saved entry among the entries of the job's box."""
    digest: str | None
    """The digest of the child's result; None: the result is not kept."""


class WaitForChild(NamedTuple):
    """The last ``step_begun`` event with which a job began to wait for one of its children."""

    row: EventRow
    fence: OutboxId
    """The fencing token of the claim under which the job began to wait."""


@dataclass(slots=True)
class Launch:
    """One call of ``map`` or ``run`` of a durable job, or one node of a flow: the events about the children that it
    enqueues.
    """

    life: str
    """The id of the parent job's box, which has the job's saved steps."""
    name: str
    is_begun: bool = False
    """True if the log has the event with which the job began to enqueue the children. A launch that a fork has copied
    was not begun."""
    row: EventRow | None = None
    """The event that says that all children are enqueued; None: the log has no such event."""
    entry: int = 0
    """The number of the box's entry that enqueues the children. 0: the log does not have this entry."""
    digest: str = ""
    """A digest of the children's number and queues, from the log."""
    queues: Sequence[str] = ()
    """The queue of each child. Empty if they are not known."""
    items: dict[int, SavedItem] = field(default_factory=dict)
    """The saved results of children, by the child's position (from 0)."""
    join: EventRow | None = None
    """The event with which the job saved how its children ended. By then, all children had ended. None: there is no
    such event."""
    waits: dict[int, WaitForChild] = field(default_factory=dict)
    """The job's waits for single children, by the child's position (from 0)."""
    made_of: str = ""
    """For a fork, a copy of another job: the id of the other job's box, from which the children's ids are computed.
    Otherwise empty."""

    def child(self, index: int) -> str:
        """Return the id of the child at position ``index`` (from 0)."""
        return child_id(self.made_of or self.life, self.name, index)

    @property
    def has_none(self) -> bool:
        """True if the launch has enqueued no children."""
        return self.digest == _NO_CHILDREN

    def beyond(self) -> Iterator[tuple[EventRow, str]]:
        """Yield each wait for a child at a position that the launch does not have, if its number of children is
        known."""
        count = len(self.queues)
        for index, wait in self.waits.items():
            if index >= count and (count or self.has_none):
                yield (
                    wait.row,
                    f"waits for child {index} (from 0), and the map has {counted(count, 'child', 'children')}",
                )

    @property
    def is_unknown(self) -> bool:
        """True if all children are enqueued, but their number and queues are not known.

        It is False for a launch that a fork has copied, and for a launch without children.
        """
        return not (self.row is None or self.queues or self.made_of or self.has_none)

    def fits(self, queues: Sequence[str]) -> bool:
        """Return whether the launch has enqueued one child in each of these queues, in this order: the digest must
        agree.
        """
        return digest_of(pack_queues(queues)) == self.digest


class Launches(dict[tuple[str, str], Launch]):
    """The launches of one queue's durable jobs: their calls of ``map`` and ``run``. The key is the id of the job's box
    and the name of the launch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parents: set[str] = set()
        """The ids of the jobs that have begun to enqueue children."""
        self.impossible: list[tuple[EventRow, str]] = []
        """The events about children that no worker writes after the events before them, each with a phrase that says
        why. A log that begins in the middle may have such events."""
        self._by_number: dict[tuple[str, int], Launch] = {}
        """The launches by the id of the job's box and the number of the box's entry that enqueues the children."""

    def read(self, row: EventRow) -> None:
        """Note what an event ``step_begun`` or ``step_saved`` says about children. An event that cannot be read is
        ignored: the replay of the log reports it.
        """
        with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            facts, row = facts_in(row[10]), row[:_KEPT]
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
        if not is_saved:
            launch.is_begun = True
        else:
            launch.row, launch.digest = row, str(facts.get("digest"))
            value = facts.get("value")
            if value is None:
                return
            made_of = life_of_children(value, launch.life)
            if made_of == launch.life:
                launch.queues = read_queues(value)
            elif launch.is_begun:
                says = f"names the children of box {made_of}, and this job has enqueued children of its own"
                self.impossible.append((row, says))
            else:
                # The children are those of another launch. Only the results that the fork has copied are compared.
                launch.made_of = made_of

    def _read_wait(self, row: EventRow, facts: Mapping[str, Any], name: str) -> None:
        place = read_child_wait(name)
        if place is None:
            return
        number, index = place
        launch = self._by_number.get((facts["life"], number))
        if launch is None or launch.row is None:
            says = f"waits for child {index} of the map in entry {number}, and the log has no such map before"
            self.impossible.append((row, says))
        if launch is not None:
            launch.waits[index] = WaitForChild(row, OutboxId.parse(facts["fence"]))

    def unknown(self) -> list[Launch]:
        """Return the launches whose children's number and queues are not known yet."""
        return [launch for launch in self.values() if launch.is_unknown]


def fill_queues(launches: Iterable[Launch], queue: str) -> None:
    """Set ``queues`` of each launch whose children are all in ``queue``, as the launch's digest shows."""
    wanted: dict[str, list[Launch]] = {}
    for launch in launches:
        wanted.setdefault(launch.digest, []).append(launch)
    for count in range(1, CHILDREN_MAX + 1):
        if not wanted:
            return
        for launch in wanted.pop(digest_of(pack_queue(queue, count)), ()):
            launch.queues = [queue] * count


def positions(launches: Iterable[Launch]) -> Iterator[tuple[str, Launch, int]]:
    """Yield each child that a job has enqueued, or whose result a job has saved: the child's id, its launch, and its
    position in the launch.
    """
    for launch in launches:
        count = len(launch.queues)
        for index in range(count):
            yield launch.child(index), launch, index
        for index in launch.items:
            if index >= count:
                yield launch.child(index), launch, index
