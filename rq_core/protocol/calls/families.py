"""The calls about durable jobs and their children: a change of a parent also changes its children that have not
succeeded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rq_core.model.durable.children import Child, children_in
from rq_core.protocol.calls.admin import Admin
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads.reads import Reads


class Families:
    """The calls about durable jobs and their children."""

    def __init__(self, admin: Admin, reads: Reads) -> None:
        self._admin = admin
        self._reads = reads

    def children(self, job_id: str, queues: Sequence[str]) -> Plan[list[Child] | None]:
        """Return the children of a job, in the order in which it has enqueued them, from the first of these queues that
        has the job; None if no queue has it."""
        steps = yield from self._reads.steps(job_id, queues)
        if steps is None:
            return None
        return children_in(steps.life or "", (e for _, e in sorted(steps.entries.items())))

    def cancel(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Cancel jobs of a queue, and then their children that are alive. Return the outcomes of the jobs, as
        Admin.cancel does, but not those of the children."""
        children = yield from self._unsaved(queue, ids)
        outcomes = yield from self._admin.cancel(queue, ids, by=by, why=why)
        for each, chosen in _by_queue(children):
            yield from self._admin.cancel(each, chosen, by=by, why=why)
        return outcomes

    def requeue(
        self, queue: str, ids: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str]]:
        """Requeue dead jobs of a queue, and before them their dead children, so that the jobs find these alive. Return
        the outcomes of the jobs, as Admin.requeue does, but not those of the children."""
        children = yield from self._unsaved(queue, ids)
        for each, chosen in _by_queue(children):
            yield from self._admin.requeue(each, chosen, by=by, why=why)
        return (yield from self._admin.requeue(queue, ids, by=by, why=why))

    def _unsaved(self, queue: str, ids: Sequence[str]) -> Plan[list[Child]]:
        """Return the children of jobs whose success their parents have not saved."""
        found: list[Child] = []
        for job_id in ids:
            children = yield from self.children(job_id, (queue,))
            found += [child for child in children or () if not child.is_saved]
        return found


def _by_queue(children: Iterable[Child]) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for child in children:
        found.setdefault(child.queue, []).append(child.id)
    return list(found.items())
