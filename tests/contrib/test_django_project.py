"""The tests of a Django project, run by Django's own test runner on SQLite and PostgreSQL."""

import re
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.kit.processes import ROOT
from tests.kit.servers import PostgresServer, RedisServer

PROJECT = Path(__file__).parent / "django_project"
TESTS = len(
    re.findall(r"^    def test_", (PROJECT / "shop" / "tests.py").read_text(), re.MULTILINE)
)


def test_the_tests_of_a_django_project_pass_on_sqlite(tmp_path: Path, valkey: RedisServer) -> None:
    run_tests(f"sqlite:{tmp_path}", valkey)


@pytest.mark.slow
def test_the_tests_of_a_django_project_pass_on_postgresql(
    postgres_server: PostgresServer, valkey: RedisServer
) -> None:
    at = make_url(postgres_server.url(f"t{uuid.uuid4().hex[:8]}"))
    run_tests(f"postgresql:{at.username},{at.host},{at.port},{at.database}", valkey)


def run_tests(databases: str, valkey: RedisServer) -> None:
    """Run the project's tests by Django's runner, up to the first failure."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", "test", "--noinput", "--failfast"],
        cwd=PROJECT,
        env={
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "SHOP_DATABASES": databases,
            "SHOP_PREFIX": f"t{uuid.uuid4().hex[:8]}",
            "SHOP_REDIS": valkey.url,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert 0 == done.returncode, done.stderr
    assert f"Ran {TESTS} tests" in done.stderr
    assert "System check identified no issues (0 silenced)." in done.stdout
