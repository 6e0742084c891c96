"""Prepares a release in the work tree: version, changelog, checks, wheel and sdist. Publishes and commits nothing.

python -m scripts.dev.release VERSION [--no-tests]
"""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scripts.dev.release_trial import PYTHONS, TrialError, trials

ROOT: Final = Path(__file__).parents[2]
TESTS_S_MAX: Final = 7_200
STEP_S_MAX: Final = 900
_VERSION: Final = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
_HEADING: Final = "## [Unreleased]"
_MEMBERS: Final = (
    "rq_core/__init__.py",
    "rq_core/_lua/claim.lua",
    "rq_core/py.typed",
    "sql_audit/__init__.py",
)
"""Files that a wheel must have: one of each package, one of the scripts, and the file that marks rq_core as typed."""


class ReleaseError(Exception):
    """The error for a release that cannot be prepared."""


def with_version(pyproject: str, version: str) -> str:
    """Return the text of pyproject.toml with this version.

    Raises ReleaseError if the version is invalid, or older than the present version.
    """
    if _VERSION.fullmatch(version) is None:
        raise ReleaseError(f"{version!r} is not a version: write 1.2.3, or 1.2.3rc1")
    now = tomllib.loads(pyproject)["project"]["version"]
    if _order(version) < _order(now):
        raise ReleaseError(f"{version} is older than {now}, the version in pyproject.toml")
    return pyproject.replace(f'version = "{now}"', f'version = "{version}"', 1)


def _order(version: str) -> tuple[int, int, int, str, int]:
    numbers, stage, count = re.fullmatch(r"([\d.]+?)(?:(a|b|rc)(\d+))?", version).groups()  # type: ignore[union-attr]  # checked
    major, minor, patch = map(int, numbers.split("."))
    return major, minor, patch, stage or "z", int(count or 0)


def with_release(changelog: str, version: str, day: dt.date) -> str:
    """Return the changelog with its unreleased changes moved under a heading for this version.

    Raises ReleaseError if there are no unreleased changes, no heading for them, or already a heading for this version.
    """
    before, found, after = changelog.partition(f"{_HEADING}\n")
    if not found:
        raise ReleaseError(f"CHANGELOG.md has no heading {_HEADING!r}")
    if f"## [{version}]" in after:
        raise ReleaseError(f"CHANGELOG.md has {version} already")
    if not after.partition("\n## ")[0].strip():
        raise ReleaseError("CHANGELOG.md says nothing under Unreleased")
    return f"{before}{_HEADING}\n\n## [{version}] - {day.isoformat()}\n{after}"


def missing_from(wheel: Path) -> list[str]:
    """Return the names of required files that the wheel does not have."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    return [name for name in _MEMBERS if name not in names]


def prepare(root: Path, version: str, *, tests: bool) -> Path:
    """Change version and changelog, run the checks, build and try the wheel, and return its path. Raises
    ReleaseError.
    """
    if _output(root, "git", "status", "--porcelain"):
        raise ReleaseError("the work tree has changes: commit them first")
    pyproject, changelog = root / "pyproject.toml", root / "CHANGELOG.md"
    project = with_version(pyproject.read_text(), version)
    released = with_release(changelog.read_text(), version, dt.datetime.now(dt.UTC).date())
    pyproject.write_text(project)
    changelog.write_text(released)
    _run(root, STEP_S_MAX, "scripts/check")
    _run(root, STEP_S_MAX, "scripts/site")
    if tests:
        _run(root, TESTS_S_MAX, "scripts/test", "--slow")
    return build(root, version)


def build(root: Path, version: str) -> Path:
    """Build the sdist and the wheel into dist, and try both in empty environments. Raises ReleaseError."""
    _run(root, STEP_S_MAX, sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist")
    wheel = root / "dist" / f"rq_core-{version}-py3-none-any.whl"
    if lacking := missing_from(wheel):
        raise ReleaseError(f"{wheel.name} lacks {', '.join(lacking)}")
    sdist = root / "dist" / f"rq_core-{version}.tar.gz"
    try:
        for line in trials(wheel, sdist, PYTHONS):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except TrialError as error:
        raise ReleaseError(str(error)) from None
    return wheel


def _run(root: Path, seconds: float, *command: str) -> None:
    sys.stdout.write(f"== {' '.join(command)}\n")
    sys.stdout.flush()
    if subprocess.run(command, cwd=root, timeout=seconds, check=False).returncode:
        raise ReleaseError(f"{command[0]} failed")


def _output(root: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Prepare a release. Return the exit status."""
    words = [each for each in arguments if each != "--no-tests"]
    if len(words) != 1:
        sys.stderr.write("usage: scripts/release VERSION [--no-tests]\n")
        return 2
    version = words[0]
    try:
        wheel = prepare(ROOT, version, tests="--no-tests" not in arguments)
    except ReleaseError as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write(
        f"{wheel.relative_to(ROOT)} is ready. What is left:\n"
        f"  git commit -am 'Release {version}' && git tag -a {version} -m {version}\n"
        f"  push both, and upload dist/rq_core-{version}* to PyPI\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
