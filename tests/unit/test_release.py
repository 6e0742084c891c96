"""The release command changes the version and the changelog as documented, and the wheel has all files."""

import datetime as dt
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.dev import release, release_trial

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


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a wheel that claims the versions of this repository's pyproject.toml."""
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text())["project"]
    path = tmp_path / "rq_core-1.0.0-py3-none-any.whl"
    lines = [f"Classifier: {each}" for each in project["classifiers"]]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rq_core-1.0.0.dist-info/METADATA", "\n".join(lines))
    return path


def test_a_release_tries_each_version_of_python_that_the_classifiers_claim(wheel: Path) -> None:
    claimed = release_trial.claimed(wheel)

    assert len(claimed) >= 3
    assert set(claimed) <= set(release_trial.PYTHONS)
    stable = (release.ROOT / "docs" / "reference" / "stability.md").read_text()
    assert f"**Supported**: Python {claimed[0]} to {claimed[-1]};" in stable
    changes = (release.ROOT / "CHANGELOG.md").read_text()
    assert f"**Python {', '.join(claimed[:-1])} and {claimed[-1]}**" in changes


def test_a_release_that_claims_a_python_which_is_missing_is_refused(
    wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        release_trial, "interpreter", lambda version: None if version == "3.12" else sys.executable
    )

    with pytest.raises(release_trial.TrialError, match=r"the classifiers say Python 3\.12, which"):
        next(release_trial.trials(wheel, wheel, release_trial.PYTHONS))


def test_a_release_says_in_one_line_which_versions_of_python_it_tried() -> None:
    found = {"3.11": "/usr/bin/python3.11", "3.12": None, "3.13": "/usr/bin/python3.13"}

    assert "tried: Python 3.11, 3.13; not found: 3.12" == release_trial.tried_line(found)
    found["3.12"] = "/usr/bin/python3.12"
    assert "tried: Python 3.11, 3.12, 3.13; not found: none" == release_trial.tried_line(found)


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text()
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert "[Unreleased]" == versions[0]
    dates = [
        re.fullmatch(r"\[\d+\.\d+\.\d+\w*\] - (\d{4}-\d\d-\d\d)", each) for each in versions[1:]
    ]
    assert all(dates)
    found = [each.group(1) for each in dates if each]
    assert sorted(found, reverse=True) == found
    assert set(re.findall(r"^### (.*)$", text, re.MULTILINE)) <= kinds


def test_the_changelog_names_each_page_of_how_to() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text()

    links = set(re.findall(r"\]\((docs/[\w./-]+)\)", text))
    assert [] == [each for each in links if not (release.ROOT / each).exists()]
    pages = {f"docs/how-to/{path.name}" for path in (release.ROOT / "docs/how-to").glob("*.md")}
    assert set() == pages - links
