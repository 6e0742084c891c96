"""Clients refuse an unsuitable server, with an error that names the remedy. An operator can overrule this check."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rq_core import App, ServerUnsuitable
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.protocol.engine import server_check
from rq_core.worker import Worker, WorkerOptions
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until


@pytest.fixture(autouse=True)
def _nobody_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    # Set first, so that what a command sets is taken back.
    monkeypatch.setenv(server_check.FORCE_VARIABLE, "0")


def evicting(server: RedisServer) -> None:
    with server.client() as control:
        control.config_set("maxmemory", "100mb")
        control.config_set("maxmemory-policy", "allkeys-lru")


def commands(url: str, audit: Path) -> list[list[str]]:
    at = ["--redis", url]
    return [
        ["worker", "tests.kit.crew:app", "--burst", *at],
        ["worker", "tests.kit.crew:app", "--burst", "--processes", "2", *at],
        ["doctor", *at],
        ["audit", "run", "--once", "--audit", str(audit), *at],
        ["enqueue", "mail", "send", "--json-args", "{}", *at],
    ]


@pytest.mark.parametrize("which", range(5))
def test_a_server_that_evicts_jobs_is_refused_with_one_line(
    redis_server: RedisServer, tmp_path: Path, which: int
) -> None:
    evicting(redis_server)
    with Client(redis_server.url) as client, pytest.MonkeyPatch.context() as patch:
        patch.setenv(server_check.FORCE_VARIABLE, "1")
        client.run(client.calls.delivery.handshake("mail"))
    words = commands(redis_server.url, tmp_path / "audit.db")[which]

    result = CliRunner().invoke(root, words)

    assert result.exit_code != 0
    (line,) = [each for each in result.stderr.splitlines() if "allkeys" in each]
    assert "CONFIG SET maxmemory-policy noeviction" in line
    assert "--force" in line


def test_the_option_force_turns_a_refusal_into_a_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    evicting(redis_server)
    words = ["doctor", "--force", "--redis", redis_server.url]

    result = CliRunner().invoke(root, words)

    assert result.exit_code == 0, result.output
    assert "server: eviction: its maxmemory-policy allkeys-lru lets it delete jobs" in result.stdout


@pytest.mark.slow
def test_a_replica_is_refused_with_an_error_that_names_the_primary(
    start_redis: Callable[..., RedisServer],
) -> None:
    primary = start_redis()
    replica = start_redis(replicaof=f"127.0.0.1 {primary.port}")

    with (
        App(replica.url) as app,
        pytest.raises(ServerUnsuitable, match=f"127.0.0.1:{primary.port}"),
    ):
        app.enqueue("mail", "send", {})


def test_a_client_that_connects_to_a_replica_waits_until_it_is_promoted(
    start_redis: Callable[..., RedisServer],
) -> None:
    """Checks a client that connects during a failover."""
    primary = start_redis()
    replica = start_redis(replicaof=f"127.0.0.1 {primary.port}")
    with Client(replica.url, sleep=lambda _: promote(replica)) as client:
        assert client.run(client.calls.delivery.handshake("mail")).epoch > 0


def promote(server: RedisServer) -> None:
    with server.client() as control:
        control.replicaof("NO", "ONE")
        wait_until(lambda: control.info("replication")["role"] == "master", "promoted")


async def test_a_worker_warns_of_a_server_without_persistence(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(redis_server.url)
    with caplog.at_level(logging.WARNING):
        await Worker(app, WorkerOptions(queues=("default",), burst=True)).run()

    (said,) = [
        r.getMessage() for r in caplog.records if r.name == "rq_core.protocol.engine.server_check"
    ]
    assert "keeps nothing on disk" in said
    assert "CONFIG SET appendonly yes" in said


async def test_a_server_that_hides_its_settings_is_used_with_a_warning(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server.client() as control:
        control.execute_command(
            "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "+@all", "-config"
        )  # type: ignore[no-untyped-call]
    try:
        app = App(f"redis://narrow:secret@127.0.0.1:{redis_server.port}/0")
        with caplog.at_level(logging.WARNING):
            await Worker(app, WorkerOptions(queues=("default",), burst=True)).run()
    finally:
        with redis_server.client() as control:
            control.execute_command("ACL", "DELUSER", "narrow")  # type: ignore[no-untyped-call]

    (said,) = [
        r.getMessage() for r in caplog.records if r.name == "rq_core.protocol.engine.server_check"
    ]
    assert "could not be checked" in said
    assert "config" in said
