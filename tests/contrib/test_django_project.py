"""The tests of a Django project, which Django's own test runner runs on databases of both kinds."""

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


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_the_tests_of_a_django_project_pass(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, valkey: RedisServer
) -> None:
    databases = f"sqlite:{tmp_path}"
    if kind == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        at = make_url(server.url(f"t{uuid.uuid4().hex[:8]}"))
        databases = f"postgresql:{at.username},{at.host},{at.port},{at.database}"

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
