"""The wheel that users install. It has every file, and works without the repository."""

import json
import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from scripts.dev import release_trial

ROOT = Path(__file__).parents[2]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside the repository, without the variables PYTHON… of this test run. Return its output."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTHON")
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    (built,) = out.glob("rq_core-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel and its dependencies in a new environment, and return its bin directory."""
    place = tmp_path_factory.mktemp("empty") / "venv"
    # This run's pip fills it: a pip of its own would take most of the time, and be in no use.
    venv.create(place, with_pip=False)
    run(
        sys.executable,
        "-m",
        "pip",
        f"--python={place / 'bin' / 'python'}",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        ROOT / ".ci" / "constraints.txt",
        f"{wheel}[embedded]",
        cwd=place,
    )
    return place / "bin"


def shipped(folder: str, *patterns: str) -> set[str]:
    found = {path for pattern in patterns for path in (ROOT / folder).rglob(pattern)}
    return {
        str(path.relative_to(ROOT / folder)) for path in found if "__pycache__" not in path.parts
    }


def test_the_wheel_contains_every_file(wheel: Path) -> None:
    """A user would notice a missing Lua file or migration only at the first call."""
    names = set(zipfile.ZipFile(wheel).namelist())
    lua = shipped("lua", "*.lua")
    migrations = shipped("sql_audit/store/migrations", "*.py", "*.md")

    assert lua
    assert {f"rq_core/_lua/{name}" for name in lua} <= names
    assert migrations
    assert {f"sql_audit/store/migrations/{name}" for name in migrations} <= names
    assert {f"rq_core/{name}" for name in shipped("rq_core", "*.py")} <= names
    assert {f"sql_audit/{name}" for name in shipped("sql_audit", "*.py", "*.ini")} <= names
    assert {"rq_core/py.typed", "sql_audit/py.typed"} <= names
    assert not [name for name in names if name.startswith(("tests/", "scripts/"))]


@pytest.mark.slow
def test_the_wheel_works_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    program = "import rq_core, sql_audit, rq_core.embedded.server; print(rq_core.__file__)"
    origin = run(installed / "python", "-c", program, cwd=tmp_path).strip()
    help_text = run(installed / "rq-core", "--help", cwd=tmp_path)
    audit_help = run(installed / "rq-core", "audit", "--help", cwd=tmp_path)

    assert Path(origin).is_relative_to(installed.parent)
    assert "worker" in help_text
    assert "audit" in help_text
    assert "history" in audit_help


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """The demo runs as for a user: in a new environment, without the repository."""
    answer = json.loads(run(installed / "rq-core", "demo", "--json", cwd=tmp_path).splitlines()[-1])

    assert answer["files"] > 500  # Debian packs the tests of Python, half of its files, apart
    assert answer["succeeded"] == answer["files"]
    assert answer["digest_mismatches"] == answer["dead"] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("extra", sorted(release_trial.EXTRAS.keys() - {"embedded"}))
def test_without_an_extra_the_last_line_names_the_command_that_installs_it(
    extra: str, installed: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [installed / "python", *release_trial.EXTRAS[extra].missing],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    said = release_trial.missing_line(done.stdout + done.stderr, extra)
    assert f"pip install 'rq-core[{extra}]'" in said


def test_each_extra_that_users_install_is_tried() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])

    # uvloop is used without a word, and the last three are for development.
    assert extras - {"fast", "docs", "look", "dev"} == release_trial.EXTRAS.keys()


@pytest.mark.slow
def test_the_embedded_server_of_the_wheels_runs(installed: Path, tmp_path: Path) -> None:
    program = (
        "from rq_core.embedded import server; server.ensure_server('d'); print(server.server_status('d').running);"
        " server.stop_server('d')"
    )

    assert run(installed / "python", "-c", program, cwd=tmp_path).strip() == "True"
