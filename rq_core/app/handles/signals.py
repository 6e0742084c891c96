"""Sends signals to durable jobs, which wait for them by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rq_core.app.producer import Producer

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle


class SignalProducer(Producer):
    """A producer that sends signals."""

    def signal(
        self,
        job: JobHandle[Any],
        name: str,
        value: Any = None,
        *,
        by: str | None = None,
        reason: str = "",
        key: str = "",
    ) -> str:
        """Send a signal to a durable job, whose handler waits for signals of this name or will.

        A signal that comes before the wait is kept. Returns ``woken`` if the job was parked for it and is ready now,
        ``sent`` if it waits for the handler, and ``known`` if a signal with this ``key`` came before: a repeated call
        with a key sends nothing. ``by`` and ``reason`` say in the log who sent it and why. Raises NotSignalled if there
        is no such job, or it takes no more signals; InvalidOption; AuditBacklogFull.
        """
        from rq_core.app.handles.signal_call import outcome_of, sending_of

        record, client = sending_of(job.id, name, value, key), self.client
        plan = client.calls.mail.signal(
            job.queue, record, by=by, why=reason, value_max=self._spec_max
        )
        return outcome_of(job.queue, record, client.run(plan))

    async def signal_async(
        self,
        job: JobHandle[Any],
        name: str,
        value: Any = None,
        *,
        by: str | None = None,
        reason: str = "",
        key: str = "",
    ) -> str:
        """See signal."""
        from rq_core.app.handles.signal_call import outcome_of, sending_of

        record, client = sending_of(job.id, name, value, key), self.async_client()
        plan = client.calls.mail.signal(
            job.queue, record, by=by, why=reason, value_max=self._spec_max
        )
        return outcome_of(job.queue, record, await client.run(plan))
