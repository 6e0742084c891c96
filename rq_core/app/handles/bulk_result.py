"""The result of ``enqueue_many``: the outcome of each enqueue, and the jobs' handles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rq_core.app.handles.handle import JobHandle
from rq_core.protocol.calls.enqueue import Accepted

if TYPE_CHECKING:
    from rq_core.app.producer import Producer


class AcceptedJobs(Accepted):
    """The outcomes of many enqueues, with the jobs' handles: ``app.as_completed(app.enqueue_many(jobs),
    timeout=60)``."""

    _producer: Producer
    _chunks: Sequence[tuple[str, Accepted]]

    @classmethod
    def of(
        cls, producer: Producer, whole: Accepted, chunks: Sequence[tuple[str, Accepted]]
    ) -> AcceptedJobs:
        """Return the AcceptedJobs for the outcomes ``whole``. ``chunks`` has the queue and the outcomes of each
        chunk."""
        made = cls(*whole)
        made._producer, made._chunks = producer, chunks
        return made

    @property
    def handles(self) -> list[JobHandle[Any]]:
        """A new list of the jobs' handles, chunk by chunk.

        If an enqueue repeated the id or the unique name of another job, the list has the handle of that job. A
        discarded or rejected job has no handle.
        """
        producer, found = self._producer, []
        for queue, part in self._chunks:
            old = dict(part.replaced)
            found += [
                JobHandle[Any](producer, id=job_id, queue=queue, replaced=old.get(job_id))
                for job_id in part.ids
            ]
            standing = (*part.duplicates, *(holder for _, holder in part.held))
            found += [
                JobHandle[Any](producer, id=job_id, queue=queue, duplicate=True)
                for job_id in standing
            ]
        return found
