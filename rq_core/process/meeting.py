"""A supervisor meets the queues of its workers, so that a missing server is one clear line and not one per process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rq_core.errors import LayoutMismatch, QueueDamaged

if TYPE_CHECKING:
    from rq_core.connections.client import Client


def meet(client: Client, queues: Sequence[str], declared: Sequence[str]) -> list[str]:
    """Meet the queues, and return those that can be used. One that is not ``declared`` must be there: it is not made.
    The workers leave out the others, and say so.

    Raises QueueDamaged or LayoutMismatch if none can be used, and what a missing server raises.
    """
    met = []
    error: QueueDamaged | LayoutMismatch | None = None
    for queue in queues:
        try:
            if queue in declared or client.run(client.calls.reads.is_there(queue)):
                client.run(client.calls.delivery.handshake(queue))
                met.append(queue)
        except (QueueDamaged, LayoutMismatch) as found:
            error = found
    if error is not None and not met:
        raise error
    return met
