"""Each path in documents, scripts and code exists. So no text has the old path of a file that was moved."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MENTION = re.compile(
    r"(?<![\w/.-])(?:\$\w+/|\./)?((?:docs|scripts|rq_core|sql_audit|lua|tests)/[\w./-]*\w)"
)
MADE_ELSEWHERE = {"rq_core/_lua", "rq_core/_lua/claim.lua", "tests/test_sums.py"}
"""Paths that exist only in the wheel, or in a temporary folder of a test."""
RELATIVE = {"mutants.md", "test_paths.py"}
"""Files that the check leaves out: mutants.md, whose paths begin inside tests/, and this file."""


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],  # noqa: S607 - whichever git is on PATH
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file()]


def mentions(text: str) -> set[str]:
    return {match.rstrip("./") for match in MENTION.findall(text)}


def test_every_path_that_the_docs_mention_exists() -> None:
    missing = []
    for path in tracked():
        if path.suffix not in {".md", ".py", ".toml", ".lua", ""} or path.name in RELATIVE:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        missing += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in sorted(mentions(text) - MADE_ELSEWHERE)
            if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()
        ]

    assert missing == []


def test_the_check_of_paths_finds_a_script_that_does_not_exist() -> None:
    assert mentions('"$here/scripts/ensure-venv"; see `rq_core/model/keys.py`.') == {
        "scripts/ensure-venv",
        "rq_core/model/keys.py",
    }
