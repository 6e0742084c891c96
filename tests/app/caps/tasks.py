"""A task whose handler does nothing, for tests of caps, and helpers that claim jobs and read events."""

from __future__ import annotations

from rq_core import App
from rq_core.model.job import Claim
from rq_core.protocol.calls import claims


def send(tenant: str, to: str = "") -> None: ...


def claim(app: App, limit: int = 10, queue: str = "mail") -> list[Claim]:
    client = app.client
    return list(client.run(claims.claim(queue, "w-1", limit)).jobs)


def events(app: App, event: str, queue: str = "mail") -> list[dict[str, str]]:
    found = app.client.run(app.client.calls.audit.read_outbox(queue, "-", 1_000))
    return [fields for _, fields in found if fields["type"] == event]
