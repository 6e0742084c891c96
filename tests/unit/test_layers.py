"""The import contracts in pyproject.toml say which folders may import which. A forbidden import fails
`scripts/check`."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of a copy of all files to which the import contracts apply."""
    place = tmp_path_factory.mktemp("tree")
    for package in ("rq_core", "sql_audit"):
        shutil.copytree(ROOT / package, place / package)
    shutil.copy(ROOT / "pyproject.toml", place)
    return place


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as main; main()",
    ]
    return subprocess.run(
        [*command, "--no-cache"], cwd=tree, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.slow
def test_the_modules_keep_the_import_contracts(tree: Path) -> None:
    done = lint(tree)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "added", "broken"),
    [
        ("rq_core/model/job.py", "import rq_core.worker.turns", "downwards only"),
        ("rq_core/protocol/engine/plan.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rq_core.app.app import App",
            "downwards only"),
        ("rq_core/doctor/log.py", "def late() -> None:\n    import rq_core.cli.root", "downwards only"),
        ("rq_core/app/handlers/retry.py", "from rq_core.app import app", "No circles"),
        ("rq_core/cli/root.py", "import sql_audit.errors", "never imports sql_audit"),
        ("rq_core/protocol/reads/reads.py", "import socket", "do no I/O"),
        ("sql_audit/store/job_rows.py", "import sql_audit.mirror.turn", "sql_audit import downwards"),
        ("sql_audit/queries/history.py", "import sql_audit.proof.replay.replay", "sql_audit import downwards"),
    ],
    ids=[
        "upwards", "for types only", "inside a function", "circle", "sql_audit", "socket", "in sql_audit", "sideways",
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_forbidden_import_fails_the_import_contract(
    tree: Path, module: str, added: str, broken: str
) -> None:
    path = tree / module
    before = path.read_text()
    path.write_text(f"{before}\n{added}\n")
    try:  # fmt: skip
        done = lint(tree)
    finally:
        path.write_text(before)

    assert done.returncode == 1
    assert any(broken in line and "BROKEN" in line for line in done.stdout.splitlines()), (
        done.stdout
    )


@pytest.mark.slow
def test_a_module_outside_all_layers_fails_the_import_contract(tree: Path) -> None:
    stray = tree / "rq_core" / "helpers.py"
    stray.write_text('"""Belongs nowhere."""\n')
    try:
        done = lint(tree)
    finally:
        stray.unlink()

    assert done.returncode == 1
    assert "rq_core.helpers" in done.stdout
