"""Fixtures: the command line, run in this process on a real server, and a client that prepares queues."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.protocol.calls import claims


@dataclass
class CommandLine:
    """The command line in a test. ``cli("job", "x")`` runs `rq-core job x`, as a shell does."""

    url: str

    def __call__(self, *words: str, stdin: str | None = None, url: str | None = None) -> Result:
        environment = {"RQ_CORE_REDIS_URL": url or self.url}
        result = CliRunner().invoke(root, words, input=stdin, env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def ok(self, *words: str, **more: Any) -> str:
        """Run a command that must succeed. Return its standard output."""
        result = self(*words, **more)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json(self, *words: str, **more: Any) -> Any:
        return json.loads(self.ok(*words, "--json", **more))

    def line(self, status: int, *words: str, **more: Any) -> str:
        """Run a command that must fail with this status and one line. Return the line without its prefix."""
        result = self(*words, **more)
        lines = result.stderr.splitlines()
        assert result.exit_code == status, result.output
        assert len(lines) == 1, result.stderr
        assert lines[0].startswith("rq-core: ")
        return lines[0].removeprefix("rq-core: ")


@pytest.fixture
def cli(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    for name in ("RQ_CORE_AUDIT_URL", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return CommandLine(valkey_url)


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    with Client(valkey_url) as made:
        yield made


@pytest.fixture
def kill(client: Client) -> Callable[..., None]:
    """Return a function that enqueues jobs, and lets each job die at its first failure."""

    def make_dead(queue: str, *ids: str, error: str = "null") -> None:
        from rq_core.model.job import NewJob, profile

        for job_id in ids:
            client.run(client.calls.enqueue.many([NewJob(job_id, queue, profile("send"), "{}")]))
            (held,) = client.run(claims.claim(queue, "w-1", 1)).jobs
            record = (held.id, held.fence, "final", 0, "gave_up", error)
            client.run(claims.fail(queue, "w-1", [record]))

    return make_dead
