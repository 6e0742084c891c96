"""The calls about durable jobs and their children.

A cancel or a requeue of a parent also changes those of its children whose ends it still needs, and the children of
these children. A parent no longer needs the end of a child that has succeeded, or of a child in a map that has had
enough successes. Handles, the command line, the web page and changes by filter all use these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rq_core.model.durable.boxes import MAP_PREFIX
from rq_core.model.durable.children import (
    Child,
    Parent,
    child_id,
    children_in,
    read_child_wait,
)
from rq_core.model.table.machine import State
from rq_core.protocol.calls.admin import Admin
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.reads import Reads

CANCELLED: Final = ("cancelled", "cancelling")
"""The outcomes of a cancelled job."""

MOVED: Final = "moved"
"""The outcome of a job that was not changed, because a claim of the job ended after its children were read."""

Verb = Callable[[Sequence[str]], Plan[dict[str, str]]]
"""A change of jobs of one queue, given by their ids. It returns the outcomes by id."""
Cancel = Callable[[Sequence[str], Mapping[str, int]], Plan[dict[str, str]]]
"""A cancel of jobs of one queue. Its arguments are the ids and, by id, how many claims of the job had ended. It returns
the outcomes by id."""


class Families:
    """The calls about durable jobs and their children."""

    def __init__(self, admin: Admin, reads: Reads) -> None:
        self._admin = admin
        self._reads = reads

    def children(self, job_id: str, queues: Sequence[str]) -> Plan[list[Child] | None]:
        """Return the children of a job, in the order in which it enqueued them. The first of ``queues`` that has the
        job is read. Returns None if no queue has the job."""
        steps = yield from self._reads.steps(job_id, queues)
        if steps is None:
            return None
        return children_in(steps.life or "", (e for _, e in sorted(steps.entries.items())))

    def cancel(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Cancel jobs of a queue, then the children of each cancelled job. Returns the outcomes of the jobs by id,
        without the children."""

        def verb(chosen: Sequence[str], ended: Mapping[str, int]) -> Plan[dict[str, str]]:
            return self._admin.cancel(queue, chosen, ended=ended, by=by, why=why)

        outcomes: dict[str, str] = {}
        left = list(dict.fromkeys(ids))
        # The loop ends: a job is left only if one of its claims ended between two calls, and its claims are bounded in
        # number.
        while left:
            outcomes |= yield from self.cancel_by(verb, queue, left, by=by, why=why)
            left = [each for each in left if outcomes[each] == MOVED]
        return outcomes

    def cancel_by(
        self, verb: Cancel, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Cancel jobs of a queue with ``verb``, then the children of each cancelled job. Returns the outcomes of
        ``verb``. For a job with the outcome ``moved``, the caller repeats the call."""
        lives, ended = yield from self._reads.lives_and_ends(queue, ids)
        families = yield from self._needed(queue, lives)
        outcomes = yield from verb(ids, ended)
        gone = [family for each, family in families.items() if outcomes.get(each) in CANCELLED]
        for each, chosen in _by_queue(gone):
            yield from self.cancel(each, chosen, by=by, why=why)
        return outcomes

    def cancel_late(
        self, queue: str, job_id: str, children: Iterable[tuple[str, str]], *, by: str, why: str
    ) -> Plan[None]:
        """Cancel children that a worker has enqueued after it lost the claim of their parent. Nothing is done unless
        the parent is cancelled or has left Redis: a cancel may then have missed these children.

        ``queue`` and ``job_id`` are those of the parent, and ``children`` has the queue and the id of each child. Any
        other parent goes on, and its next run needs its children.
        """
        lines = yield from self._reads.lines(queue, [job_id])
        if lines[job_id] and lines[job_id].partition(" ")[0] != State.CANCELLING:
            return
        by_queue: dict[str, list[str]] = {}
        for each, child in children:
            by_queue.setdefault(each, []).append(child)
        for each, ids in by_queue.items():
            yield from self.cancel(each, ids, by=by, why=why)

    def requeue(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Requeue dead jobs of a queue. Their dead children are requeued first, so that each parent finds its children
        alive. Returns the outcomes of the jobs by id, without the children."""

        def verb(chosen: Sequence[str]) -> Plan[dict[str, str]]:
            return self._admin.requeue(queue, chosen, by=by, why=why)

        return (yield from self.requeue_by(verb, queue, ids, by=by, why=why))

    def requeue_by(
        self, verb: Verb, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Requeue the dead children of the dead jobs among ``ids``, then the jobs with ``verb``. Returns the outcomes
        of ``verb``."""
        lives = yield from self._reads.lives(queue, ids, State.DEAD)
        families = yield from self._needed(queue, lives)
        for each, chosen in _by_queue(families.values()):
            yield from self.requeue(each, chosen, by=by, why=why)
        return (yield from verb(ids))

    def true_parents(self, said: Sequence[Parent]) -> Plan[list[Parent]]:
        """Return the parents in ``said`` that have really enqueued the child for which they wait, and may need a
        signal. The children have ended before this call.

        Any producer can write a header that names a parent. But no producer can choose the id of a child.

        A parent that is parked, and waits only for other entries, needs no signal: it reads the ends of all its
        children when it goes on.
        """
        found: list[Parent] = []
        by_queue: dict[str, list[Parent]] = {}
        for each in said:
            by_queue.setdefault(each.queue, []).append(each)
        for queue, parents in by_queue.items():
            ids = list({each.id: None for each in parents})
            lives, waits = yield from self._reads.lives_and_waits(queue, ids)
            places = {each: read_child_wait(each.wait) for each in parents if each.id in lives}
            asked = {(lives[each.id], place[0]) for each, place in places.items() if place}
            asked |= {
                (lives[i], number)
                for i, numbers in waits.items()
                if i in lives
                for number in numbers
            }
            names = yield from self._reads.names(queue, sorted(asked))
            for each, place in places.items():
                life = lives[each.id]
                name = place and names.get((life, place[0]))
                launch = (name or "").removeprefix(MAP_PREFIX)
                if not place or launch == name or each.child != child_id(life, launch, place[1]):
                    continue
                awaited = [names.get((life, number)) for number in waits.get(each.id, ())]
                if not awaited or any(_is_wait_for(entry, place) for entry in awaited):
                    found.append(each)
        return found

    def _needed(self, queue: str, lives: Mapping[str, str]) -> Plan[Mapping[str, list[Child]]]:
        """Return, by the parent's id, the children whose ends the parent still needs. ``lives``: parent's id → name of
        the parent's box."""
        found: dict[str, list[Child]] = {}
        for job_id, life in lives.items():
            entries = yield from self._reads.entries(queue, life)
            children = children_in(life, (entry for _, entry in sorted(entries.items())))
            found[job_id] = [child for child in children if not child.is_over]
        return found


def _is_wait_for(entry: str | None, place: tuple[int, int]) -> bool:
    """Return whether an entry with this name may be a wait for a child.

    ``place`` is what ``read_child_wait`` returns for the child. The name None is that of an entry that cannot be read.
    """
    return entry is None or read_child_wait(entry) == place


def _by_queue(families: Iterable[Iterable[Child]]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for family in families:
        for child in family:
            found.setdefault(child.queue, []).append(child.id)
    return list(found.items())
