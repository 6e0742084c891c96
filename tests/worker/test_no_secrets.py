"""A worker and a mirror on a server with a password. No output and no stored data contain the password."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import pytest

from rq_core.model.lib.url import AUDIT_URL_VARIABLE, REDIS_URL_VARIABLE
from tests.kit import crew
from tests.kit.processes import command_of
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until
from tests.worker.conftest import one_engine

SECRET = "hunter2hunter2"  # noqa: S105 - made up


@one_engine
@pytest.mark.slow
def test_a_password_appears_in_no_command_line_no_log_no_sql_row_and_no_redis_key(
    start_redis: Callable[..., RedisServer],
    witness: crew.Witness,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = start_redis(requirepass=SECRET)
    monkeypatch.setenv(REDIS_URL_VARIABLE, server.url)
    monkeypatch.setenv(AUDIT_URL_VARIABLE, f"{postgres_url}?password={SECRET}")
    log = tmp_path / "worker.log"
    command = [sys.executable, "-m", "rq_core.cli", "worker", "tests.kit.crew:app", "-q", "crew"]
    with (
        log.open("wb") as out,
        subprocess.Popen([*command, "-p", "2", "--audit"], stdout=out, stderr=out) as process,
    ):
        try:
            crew.app.connect_to(server.url)
            bad = crew.failing.enqueue(f"connecting to {server.url} failed")
            wait_until(lambda: bad.state() == "dead", "the job has died", timeout=30)
            family = [process.pid, *(p.pid for p in psutil.Process(process.pid).children(True))]
            command_lines = [command_of(pid) for pid in family]
            with server.client() as redis:
                # Its arguments are the job's own, as they are.
                keys = [key for key in redis.scan_iter() if not key.endswith(b":jobs")]
                outbox = str(redis.xrange("rqc:{crew}:outbox"))
                kept = b"".join(redis.dump(key) or b"" for key in keys)
        finally:
            crew.app.close()
            process.terminate()
            process.wait(60)

    assert any("audit run" in line for line in command_lines)
    assert SECRET not in "\n".join(command_lines)
    assert "is mirrored into postgresql://" in log.read_text()
    assert SECRET not in log.read_text()
    assert kept
    assert SECRET not in outbox
    assert SECRET.encode() not in kept
    with psycopg.connect(f"{postgres_url}?password={SECRET}".replace("+psycopg", "")) as sql:
        rows = sql.execute("SELECT error_message FROM job").fetchall()
    assert rows == [(f"connecting to redis://:***@127.0.0.1:{server.port}/0 failed",)]
