"""Sends signals to durable jobs, whose handlers wait for signals by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rq_core.app.producer import Producer

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle


class SignalProducer(Producer):
    """A producer with the methods that send signals."""

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
        """Send a signal to a durable job whose handler waits, or will wait, for signals of this name.

        Redis keeps a signal that arrives before the handler waits. The outcome is one of these words:

        - ``woken``: the job was parked until this signal, and is now ready.
        - ``sent``: Redis keeps the signal for the handler.
        - ``known``: an earlier signal had this ``key``. The call sent nothing.

        The log has ``by`` (the sender) and ``reason``. Raises NotSignalled if the job does not exist or takes no more
        signals. Raises InvalidOption, and AuditBacklogFull.
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
        """Send a signal to a durable job without blocking the event loop. See signal."""
        from rq_core.app.handles.signal_call import outcome_of, sending_of

        record, client = sending_of(job.id, name, value, key), self.async_client()
        plan = client.calls.mail.signal(
            job.queue, record, by=by, why=reason, value_max=self._spec_max
        )
        return outcome_of(job.queue, record, await client.run(plan))
