"""A supervisor meets the queues of its workers, so that a missing server is one clear line and not one per process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rq_core.connections.client import Client
from rq_core.connections.open import open_wire
from rq_core.connections.wire import WORKER_SOCKET_TIMEOUT_S
from rq_core.errors import (
    LayoutMismatch,
    OutcomeUnknown,
    QueueDamaged,
    RqCoreError,
    ServerUnavailable,
)
from rq_core.model.url import is_cluster
from rq_core.protocol import server_check
from rq_core.protocol.plan import Patience

if TYPE_CHECKING:
    from rq_core.app.app import App

PATIENCE: Final = Patience(unsent=3.0, unknown=3.0)
"""How long a shard of a cluster is waited for: one that is frozen must not keep the workers from the others' queues."""


class Met(NamedTuple):
    """The queues that can be used."""

    queues: list[str]
    made: list[str]
    """Those of them that were not there before."""


def meet(app: App, queues: Sequence[str]) -> tuple[Met, list[server_check.Remark]]:
    """Meet the queues. Returns those that can be used, and what is to be said of the server. In a cluster it is enough
    that one shard answers.

    Raises what is wrong if none can be used.
    """
    if not is_cluster(app.redis_url):
        client = app.client
        remarks = client.run(server_check.check(client.calls.delivery.asking))
        return _meet(client, queues, app.queues), remarks
    wire = open_wire(app.redis_url, answer_within=WORKER_SOCKET_TIMEOUT_S)
    with Client(app.redis_url, prefix=app.prefix, patience=PATIENCE, wire=wire) as client:
        met = _meet(client, queues, app.queues)
        asking = client.calls.delivery.asking
        return met, client.run(server_check.check(asking, next(iter(met.queues), None)))


def _meet(client: Client, queues: Sequence[str], declared: Sequence[str]) -> Met:
    """Meet the queues, and return those that can be used. One that is not ``declared`` must be there: it is not made.
    The workers leave out the others, and say so."""
    met = Met([], [])
    error: RqCoreError | None = None
    silent: set[object] = set()
    for queue in queues:
        if client.place(queue) in silent:
            continue
        try:
            if queue in declared or client.run(client.calls.reads.is_there(queue)):
                answer = client.run(client.calls.delivery.handshake(queue))
                met.queues.append(queue)
                if answer.started == "created":
                    met.made.append(queue)
        except (QueueDamaged, LayoutMismatch) as found:
            error = found
        except (ServerUnavailable, OutcomeUnknown) as found:
            if not is_cluster(client.url):
                raise
            error = found
            silent |= {client.place(queue)} - {None}
    if error is not None and not met.queues:
        raise error
    return met
