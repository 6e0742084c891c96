"""The release command changes the version and the changelog as documented, and the wheel has all files."""

import datetime as dt
import zipfile
from pathlib import Path

import pytest

from scripts.dev import release

DAY = dt.date(2026, 11, 22)
PROJECT = '[project]\nname = "rq-core"\nversion = "0.2.0"\n'
CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A cap.\n\n## [0.2.0] - 2026-01-01\n\n- x\n"
)


def test_a_release_moves_the_unreleased_changes_of_the_changelog_under_its_version() -> None:
    after = release.with_release(CHANGES, "0.3.0", DAY)

    assert after == CHANGES.replace(
        "## [Unreleased]\n", "## [Unreleased]\n\n## [0.3.0] - 2026-11-22\n"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("# Changelog\n", "no heading"),
        ("## [Unreleased]\n\n## [0.2.0]\n\n- x\n", "nothing under Unreleased"),
        ("## [Unreleased]\n\n- y\n\n## [0.3.0]\n\n- x\n", "0.3.0 already"),
    ],
)
def test_a_changelog_that_cannot_be_released_is_refused(changes: str, words: str) -> None:
    with pytest.raises(release.ReleaseError, match=words):
        release.with_release(changes, "0.3.0", DAY)


@pytest.mark.parametrize("version", ["0.2.0", "0.2.1rc1", "0.10.0", "1.0.0"])
def test_the_release_command_writes_the_same_or_a_later_version(version: str) -> None:
    assert f'version = "{version}"' in release.with_version(PROJECT, version)


@pytest.mark.parametrize("version", ["0.1.9", "0.2.0rc1", "0.2.0a1", "0.2", "v0.3.0", "0.3.0.dev1"])
def test_the_release_command_refuses_an_older_or_invalid_version(version: str) -> None:
    with pytest.raises(release.ReleaseError):
        release.with_version(PROJECT, version)


def test_the_files_of_this_repository_can_be_released() -> None:
    project = (release.ROOT / "pyproject.toml").read_text()
    changes = (release.ROOT / "CHANGELOG.md").read_text()

    assert 'version = "99.0.0"' in release.with_version(project, "99.0.0")
    assert "## [99.0.0] - 2026-11-22" in release.with_release(changes, "99.0.0", DAY)


def test_the_release_command_finds_a_script_that_the_wheel_lacks(tmp_path: Path) -> None:
    wheel = tmp_path / "rq_core-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("rq_core/__init__.py", "rq_core/py.typed", "sql_audit/__init__.py"):
            archive.writestr(name, "")

    assert ["rq_core/_lua/claim.lua"] == release.missing_from(wheel)


def test_the_release_command_refuses_a_work_tree_with_changes_and_does_not_change_it(
    tmp_path: Path,
) -> None:
    release._output(tmp_path, "git", "init")
    (tmp_path / "pyproject.toml").write_text(PROJECT)

    with pytest.raises(release.ReleaseError, match="commit them first"):
        release.prepare(tmp_path, "0.3.0", tests=False)

    assert PROJECT == (tmp_path / "pyproject.toml").read_text()
