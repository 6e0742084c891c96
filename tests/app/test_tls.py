"""Connections over TLS, which a client uses if the URL says so. An error about a certificate names the cause."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from rq_core import App, Gone, InvalidOption, ServerError, ServerUnsuitable
from rq_core.cli.root import root
from rq_core.connections import tls_probe
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.protocol.engine.plan import Patience
from rq_core.protocol.reads import wait_schedule
from tests.conftest import ENGINES
from tests.kit import certificates, crew
from tests.kit.certificates import Certificates
from tests.kit.sentinels import SERVICE, SentinelProcess
from tests.kit.servers import Engine, RedisServer, free_port
from tests.kit.wait import wait_until
from tests.kit.waits import in_thread
from tests.kit.witness import WITNESS

# The wheel's Valkey is built without TLS.
pytestmark = pytest.mark.parametrize(
    "engine", [e for e in ENGINES if e.name != "valkey"], ids=lambda e: e.name
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates.make(tmp_path_factory.mktemp("tls") / "certificates")


@pytest.fixture
def port() -> int:
    """Return a free port, on which the server speaks TLS."""
    return free_port()


@pytest.fixture(autouse=True)
def server(start_redis: Callable[..., RedisServer], files: Certificates, port: int) -> RedisServer:
    """Return a server with TLS that requires a certificate from each client."""
    return start_redis(
        tls_port=str(port),
        tls_cert_file=files("server.crt"),
        tls_key_file=files("server.key"),
        tls_ca_cert_file=files("ca.crt"),
        tls_auth_clients="yes",
    )


def url_of(port: int, files: Certificates, **given: str | None) -> str:
    options = {
        "ssl_ca_certs": files("ca.crt"),
        "ssl_certfile": files("client.crt"),
        "ssl_keyfile": files("client.key"),
        **given,
    }
    query = "&".join(f"{name}={value}" for name, value in options.items() if value is not None)
    return f"rediss://127.0.0.1:{port}/0?{query}"


async def test_a_client_enqueues_over_tls_from_sync_and_async_code(
    port: int, files: Certificates
) -> None:
    app = App(url_of(port, files))
    task = app.task(queue="mail")(_nothing)
    try:
        assert task.enqueue().state() == "ready"
        handle = await task.enqueue_async()
        assert handle.state() == "ready"
        assert app.client.wait_outbox({"mail": "0-0"}, 1) == {"mail"}
    finally:
        await app.aclose()


def test_a_wait_over_tls_receives_the_message_that_its_job_has_ended(
    port: int, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_schedule, "HEARD_S", (3600.0,))
    with App(url_of(port, files)) as app:
        task = app.task(queue="mail")(_nothing)
        for _ in range(3):
            handle = task.enqueue()
            waiting = in_thread(handle, app)
            handle.cancel()

            assert Gone(handle.id) == waiting.result(20)


def _nothing() -> None:
    pass


@pytest.mark.slow
def test_workers_with_a_mirror_and_every_command_work_over_tls(
    port: int, files: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the supervisor, the workers, the heartbeats and the mirror. Each has a connection of its own."""
    url, audit = url_of(port, files), str(tmp_path / "audit.db")
    witness = crew.Witness(tmp_path / "witness")
    monkeypatch.setenv(WITNESS, str(witness.path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    crew.app.connect_to(url)

    def cli(*words: str) -> str:
        result = CliRunner().invoke(root, words)
        assert result.exit_code == 0, (words, result.output)
        return result.stdout

    try:
        slow = crew.sleeping.enqueue(3 * crew.LEASE)
        with crew.worker_process(url, witness, "--processes", "2", "--audit", audit) as process:
            crew.coroutine.enqueue(1)
            wait_until(lambda: slow.state() == "gone", "it ran for three leases", timeout=60)
            assert json.loads(cli("health", "--json"))["healthy"]
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0, witness.log()
        at = ("--redis", url)
        crew.function.enqueue(2)
        cli("doctor", *at)
        assert "crew" in cli("queues", *at)
        cli("audit", "run", "--once", "--audit", audit, *at)
        cli("audit", "verify", "--audit", audit, *at)
    finally:
        crew.app.close()

    lines = [line for line in witness.lines() if line["job"] == slow.id]
    assert {1} == {line["claim"] for line in lines}


@pytest.mark.parametrize(
    "given, words",
    [
        ({"ssl_ca_certs": None}, "name the authority's file in the URL, ?ssl_ca_certs=/path/ca.crt"),
        ({"ssl_certfile": None, "ssl_keyfile": None}, "?ssl_certfile=/path/client.crt&ssl_keyfile="),
        ({"ssl_ca_certs": "/nowhere/ca.crt"}, "there is no file /nowhere/ca.crt, which ssl_ca_certs names"),
    ],
    ids=["authority", "client", "missing file"],
)  # fmt: skip
def test_the_error_of_an_invalid_certificate_names_a_remedy(
    port: int, files: Certificates, given: dict[str, str | None], words: str
) -> None:
    with (
        App(url_of(port, files, **given), patience=Patience(unsent=0.1)) as app,
        pytest.raises((ServerError, InvalidOption)) as caught,
    ):
        app.enqueue("mail", "send", {})

    assert words in str(caught.value)


def test_a_certificate_for_another_host_is_refused(port: int, files: Certificates) -> None:
    url = url_of(port, files).replace("127.0.0.1", "localhost")
    with (
        App(url, patience=Patience(unsent=0.1)) as app,
        pytest.raises(ServerError, match="certificate is not valid for 'localhost'"),
    ):
        app.enqueue("mail", "send", {})


async def _enqueue(url: str) -> None:
    app = App(url)
    try:
        await app.task(queue="mail")(_nothing).enqueue_async()
    finally:
        await app.aclose()


@pytest.mark.parametrize("url_asks", ["plain", "tls"])
@pytest.mark.slow
def test_the_error_of_a_url_with_the_wrong_scheme_names_the_right_scheme(
    url_asks: str, server: RedisServer, port: int, files: Certificates, tmp_path: Path
) -> None:
    """Checks that the error is not "no answer from Redis". The mirror exits, and does not try again."""
    plain = server.url.partition("://")[2]
    if url_asks == "plain":
        url, says = f"redis://127.0.0.1:{port}/0", "it speaks TLS on this port"
        how = "begin the URL with rediss://"
    else:
        url, says = (
            f"rediss://{plain}?ssl_ca_certs={files('ca.crt')}",
            "it speaks no TLS on this port",
        )
        how = "begin the URL with redis://"
    told = []
    with App(url) as app, pytest.raises(ServerUnsuitable) as caught:
        app.task(queue="mail")(_nothing).enqueue()
    told.append(str(caught.value))
    with pytest.raises(ServerUnsuitable) as caught:
        asyncio.run(_enqueue(url))
    told.append(str(caught.value))
    for words in (
        ("queues",),
        ("audit", "run", "--audit", str(tmp_path / "audit.db")),
        ("worker", "tests.kit.crew:app"),
    ):
        done = CliRunner().invoke(root, [*words, "--redis", url])
        assert done.exit_code == 1
        told.append(done.output)

    for each in told:
        assert says in each
        assert how in each


def test_a_port_is_not_probed_for_tls_if_it_speaks_the_protocol_of_the_url(
    port: int, files: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a client without its certificate. The URL asks for TLS, and the port speaks TLS. So a probe of
    the port would find nothing wrong."""
    monkeypatch.setattr(tls_probe, "_greeting", lambda **_: pytest.fail("it looked"))
    url = url_of(port, files, ssl_certfile=None, ssl_keyfile=None)
    with App(url, patience=Patience(unsent=0.1)) as app, pytest.raises(ServerError) as caught:
        app.enqueue("mail", "send", {})

    assert not isinstance(caught.value, ServerUnsuitable)


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("threads", "TLS of a plain port"),
        ("threads", "none of a port with TLS"),
        ("asyncio", "none of a port with TLS"),
    ],
)
@pytest.mark.slow
def test_the_error_of_a_sentinel_url_with_the_wrong_scheme_names_the_right_scheme(
    server: RedisServer, port: int, asked: str, kind: str
) -> None:
    """Checks that the error does not say that the connection timed out or was closed.

    With asyncio and TLS, the connection times out before the client can tell a plain port from a silent one.
    """
    if asked == "TLS of a plain port":
        url, says = f"rediss+sentinel://127.0.0.1:{server.port}/mymaster", "it speaks no TLS on"
    else:
        url, says = f"redis+sentinel://127.0.0.1:{port}/mymaster", "it speaks TLS on"
    with pytest.raises(ServerError, match=f"127.0.0.1:[0-9]+: {says} this port, and the URL asks"):
        if kind == "threads":
            look(url)
        else:
            asyncio.run(look_async(url))


def look(url: str) -> None:
    with Client(url, patience=Patience(unsent=4.0)) as client:
        client.run(client.calls.reads.queues())


async def look_async(url: str) -> None:
    async with AsyncClient(url, patience=Patience(unsent=4.0)) as client:
        await client.run(client.calls.reads.queues())


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_primary_and_its_sentinel_are_reached_over_tls(
    server: RedisServer, engine: Engine, port: int, files: Certificates, tmp_path: Path, kind: str
) -> None:
    """Checks the blocking and the async client. The URL's TLS options apply to the Sentinel and to the primary."""
    words = {
        "tls-port": str(free_port()),
        "tls-replication": "yes",
        "tls-cert-file": files("server.crt"),
        "tls-key-file": files("server.key"),
        "tls-ca-cert-file": files("ca.crt"),
        "sentinel monitor": f"{SERVICE} 127.0.0.1 {port} 1",
    }
    sentinel = SentinelProcess(engine, tmp_path / "sentinel", server, words)
    sentinel.start()
    try:
        wait_until(sentinel.answers, "the sentinel answers")
        url = url_of(int(words["tls-port"]), files)
        url = url.replace("rediss://", "rediss+sentinel://").replace("/0?", f"/{SERVICE}?")
        if kind == "threads":
            look(url)
        else:
            asyncio.run(look_async(url))
    finally:
        sentinel.kill()
