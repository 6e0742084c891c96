"""Fixtures: the page on a real server, a busy queue with a log, and an HTTP client without JavaScript."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from rq_core.web.access import Gate, Mounted
from rq_core.web.dashboard import build_site
from rq_core.web.sources import ActingSources
from rq_core.web.tokens import Access
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit.auditlog import drain
from tests.kit.schemas import lay_schema
from tests.kit.seed import Seed

QUEUE = "mail"
HOST = "http://localhost:8900"
SECRET = "s3ntinel-of-ann"  # noqa: S105 - it is none
"""A text in all secret data of a job. Only viewers with the right may see this text."""
ERROR = json.dumps(
    {"type": "SmtpError", "message": f"refused {SECRET}", "traceback": f"at {SECRET}"}
)

Browse = Callable[..., TestClient]


@dataclass
class Scene:
    """A server with one queue, and its audit log."""

    seed: Seed
    audit_url: str

    @property
    def url(self) -> str:
        return self.seed.client.url

    def mirror(self, *queues: str) -> None:
        """Mirror all new events into the log."""
        database = Database(self.audit_url)
        with contextlib.closing(database):
            for queue in queues or (self.seed.queue,):
                drain(Mirror(Outbox(self.seed.client), database, queue))

    def die(self, job_id: str, error: str = ERROR) -> None:
        """Let a job die of this error."""
        seed = self.seed
        seed.enqueue(job_id, priority="critical", args_json=json.dumps({"to": SECRET}))
        # A job of the scene whose lease has expired meanwhile is before this one.
        taken = (each for _ in range(100) for each in seed.claim(1).jobs)
        claim = next(each for each in taken if each.id == job_id)
        seed.client.run(
            claims.fail(seed.queue, "w-1", [(claim.id, claim.fence, "final", 0, "gave_up", error)])
        )

    def schedule(self, name: str, *, args_json: str = "{}", **rule: Any) -> None:
        """Store a schedule, as an operator does."""
        seed = self.seed
        job = seed.job("-", task="ping", args_json=args_json, spec_max=10_000)
        made = Declaration.of(job, recurrence(name, **rule))
        seed.client.run(seed.client.calls.schedules.put(seed.queue, [made]))

    def present(self, worker: str = "w-1", *, host: str = "db-1") -> None:
        """Register a running worker."""
        says = Presence(host, 7, "1.0", "c0de", (self.seed.queue,), 4, 1, 0)
        self.seed.client.run(
            worker_registry.announce("rqc", worker, says, [self.seed.queue], ["t"])
        )


def lay_log(audit_url: str) -> None:
    """Create the tables of the log in an audit database."""
    with contextlib.closing(Database(audit_url)) as database:
        lay_schema(database)


@pytest.fixture
def scene(valkey_url: str, sqlite_url: str) -> Iterator[Scene]:
    """Yield an empty server, and an audit database with its tables."""
    lay_log(sqlite_url)
    with Seed(valkey_url, QUEUE, real_clock=True) as seed:
        yield Scene(seed, sqlite_url)


def make_busy(scene: Scene) -> None:
    """Make a schedule, and jobs that are dead, running, ready, scheduled, ended or waiting for a cap."""
    seed = scene.seed
    scene.schedule("beat", every=600, overlap="allow")
    scene.die("died")
    seed.complete(seed.running("done"))
    seed.cap("tenant", 1)
    seed.enqueue(seed.job("holds", priority="critical", scopes=["tenant=acme"]))
    seed.claim_one("holds")
    seed.enqueue(seed.job("waits", scopes=["tenant=acme"], priority="critical"))
    seed.claim()
    seed.enqueue("ready", "later", args_json=json.dumps({"to": SECRET}))
    seed.enqueue(seed.job("scheduled", delay_ms=3_600_000))
    scene.present()
    scene.mirror()


@pytest.fixture
def busy(scene: Scene) -> Scene:
    """Return a scene with a busy queue."""
    make_busy(scene)
    return scene


@pytest.fixture
def browse(scene: Scene) -> Iterator[Browse]:
    """Yield a function that opens the page as a viewer, for example ``browse(see_arguments=True)`` or
    ``browse(log=False)``."""
    with contextlib.ExitStack() as stack:

        def open_page(
            *,
            url: str | None = None,
            log: bool = True,
            see_arguments: bool = False,
            gate: Gate | None = None,
            hosts: tuple[str, ...] = (),
            host: str = HOST,
            client: tuple[str, int] = ("127.0.0.1", 50_000),
            root_path: str = "",
            behind_https: bool = False,
            **headers: str,
        ) -> TestClient:
            sources = ActingSources(url or scene.url, audit_url=scene.audit_url if log else None)
            who = gate or Mounted(lambda _: Access("ann", see_arguments=see_arguments))
            made = TestClient(
                build_site(sources, who, hosts, behind_https=behind_https), base_url=host, client=client,
                root_path=root_path, headers=headers, follow_redirects=False,
            )  # fmt: skip
            return stack.enter_context(made)

        yield open_page


@pytest.fixture
def tokens_file(tmp_path: Path) -> Path:
    return tmp_path / "tokens"


def read(page: TestClient, path: str, **more: Any) -> str:
    """Return the text of a page. Asserts that the page exists."""
    answer = page.get(path, **more)
    assert answer.status_code == 200, answer.text
    return answer.text
