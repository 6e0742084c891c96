"""The calls about durable jobs and their children.

A cancel or a requeue of a parent also changes the children whose ends the parent still needs, and the children of these
children. A parent no longer needs the end of a child that has succeeded, or of a child in a map that has had enough
successes. Handles, the command line, the web page and changes by filter all use these calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from rq_core.model.durable.children import Child, children_in
from rq_core.model.table.machine import State
from rq_core.protocol.calls.admin import Admin
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.reads import Reads

CANCELLED: Final = ("cancelled", "cancelling")
"""The outcomes of a cancelled job."""

MOVED: Final = "moved"
"""The outcome of a job that was not changed, because a claim of the job ended after its children were read."""

Verb = Callable[[Sequence[str]], Plan[dict[str, str]]]
"""A function that changes jobs of one queue, such as a requeue. It takes the ids of the jobs, and returns the outcomes
by id."""
Cancel = Callable[[Sequence[str], Mapping[str, int]], Plan[dict[str, str]]]
"""A function that cancels jobs of one queue. Its arguments are the ids of the jobs and, by id, how many claims of the
job had ended when the job was read. It returns the outcomes by id."""


class Families:
    """The calls about durable jobs and their children."""

    def __init__(self, admin: Admin, reads: Reads) -> None:
        self._admin = admin
        self._reads = reads

    def children(self, job_id: str, queues: Sequence[str]) -> Plan[list[Child] | None]:
        """Return the children of a job, in the order in which the job enqueued them. The first of ``queues`` that has
        the job is read. Returns None if no queue has the job."""
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
        """Cancel jobs of a queue with the function ``verb``, then the children of each cancelled job. Returns the
        outcomes of ``verb``. The caller must repeat the call for each job with the outcome ``moved``: the job has run
        meanwhile.
        """
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
        """Cancel children that a worker has enqueued after it lost the claim of their parent. If the parent is being
        cancelled or has left Redis, the parent's cancel may have missed these children. Otherwise nothing is done,
        because the parent's next run needs the children.

        ``queue`` and ``job_id`` are those of the parent, and ``children`` has the queue and the id of each child.
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
        """Requeue the dead children of the dead jobs among ``ids``. Then call the function ``verb``, which requeues the
        jobs themselves, with all ``ids``. Returns the outcomes of ``verb``.
        """
        lives = yield from self._reads.lives(queue, ids, State.DEAD)
        families = yield from self._needed(queue, lives)
        for each, chosen in _by_queue(families.values()):
            yield from self.requeue(each, chosen, by=by, why=why)
        return (yield from verb(ids))

    def _needed(self, queue: str, lives: Mapping[str, str]) -> Plan[Mapping[str, list[Child]]]:
        """Return, by the parent's id, the children whose ends the parent still needs. ``lives`` has, by the parent's
        id, the id of the box in which Redis keeps the parent's steps.
        """
        found: dict[str, list[Child]] = {}
        for job_id, life in lives.items():
            entries = yield from self._reads.entries(queue, life)
            children = children_in(life, (entry for _, entry in sorted(entries.items())))
            found[job_id] = [child for child in children if not child.is_over]
        return found


def _by_queue(families: Iterable[Iterable[Child]]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for family in families:
        for child in family:
            found.setdefault(child.queue, []).append(child.id)
    return list(found.items())
