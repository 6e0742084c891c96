"""Plays a page: writes its files, runs its commands, and compares their output with the page's.

A page is played from top to bottom. A ``python`` block with a title is a file of this name. In a ``console`` block, a
line with ``$ `` is a command, and the lines below are its output. In a ``sh`` block, each line is a command, whose
output is not compared. Times, ids, process numbers, and the numbers of entries and batches are masked, since they
differ in each run. ``…`` matches any text. A line of only ``…`` matches any lines.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
EXAMPLES: Final = DOCS / "examples"
_BLOCK: Final = re.compile(
    r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SNIPPET: Final = re.compile(r'^--8<-- "([\w./-]+)"$', re.MULTILINE)
_SETUP: Final = ("python3 -m venv", ". .venv/", "pip install")
"""Commands that set up an environment. They are not run, since the tests already run in such an environment."""
_MASKS: Final = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d{3}Z?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{40,64}\b"), "HASH"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\bbulk [0-9a-f]{16}\b"), "bulk ID"),
    (re.compile(r"\b([wcm]|cli)-\d+-[0-9a-f]{12}\b"), r"\1-PROCESS"),
    (re.compile(r"\b\d{13}-\d+\b"), "NUMBER"),
    (re.compile(r"\b\d{13}, number \d+"), "NUMBER"),
    (re.compile(r"\bin \d+ entries and \d+ batches\b"), "in N entries and N batches"),
    (re.compile(r"\bin \d+ entries\b"), "in N entries"),
    (re.compile(r"\bran_s=[\d.]+"), "ran_s=N"),
    (re.compile(r"─+"), "─"),
)


@dataclass
class File:
    """A file with its content from the page."""

    name: str
    text: str


@dataclass
class Command:
    """A command on the page. ``prints`` is its output on the page, or None in a ``sh`` block."""

    line: str
    prints: list[str] | None = field(default=None)


def with_snippets(text: str) -> str:
    """Replace each reference to a file of docs/examples by the file's content."""
    return _SNIPPET.sub(lambda match: (EXAMPLES / match[1]).read_text().rstrip("\n"), text)


def steps(text: str) -> Iterator[File | Command]:
    """Return the files and commands of a page, in order."""
    for kind, title, body in _BLOCK.findall(text):
        if kind == "python" and title:
            yield File(title, with_snippets(body))
        elif kind == "sh":
            yield from (Command(line) for line in body.splitlines() if line.strip())
        elif kind == "console":
            command: Command | None = None
            for line in body.splitlines():
                if line.startswith("$ "):
                    if command is not None:
                        yield command
                    command = Command(line[2:], [])
                elif command is not None and command.prints is not None:
                    command.prints.append(line)
            if command is not None:
                yield command


def _same(expected: str, printed: str) -> bool:
    pattern = "".join(
        ".*" if part == "…" else re.escape(part) for part in re.split("(…)", expected)
    )
    return re.fullmatch(pattern, printed) is not None


def _masked(lines: list[str]) -> list[str]:
    text = "\n".join(lines)
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Return whether a command has printed the lines of the page.

    Neighbouring lines without ``…`` must be printed in the page's order. All other lines may come in any order, since
    two processes may print at once.
    """
    said = _masked(expected)
    left = _masked(printed)
    for exact, group in itertools.groupby(said, lambda line: "…" not in line):
        following = iter(left)
        if exact and not all(line in following for line in group):
            return False
    for line in sorted((line for line in said if line != "…"), key=lambda line: line.count("…")):
        match = next((each for each in left if _same(line, each)), None)
        if match is None:
            return False
        left.remove(match)
    return "…" in said or not left


def play(page: Path, directory: Path, *, seconds: float) -> list[str]:
    """Write the page's files and run its commands in ``directory``. Return all differences from the page, as text.

    A command that fails is a difference. The commands after it still run.
    """
    wrong = []
    script = ["exec 2>&1"]
    typed: list[Command] = []
    for step in steps(page.read_text(encoding="utf-8")):
        if isinstance(step, File):
            # Written when its turn comes: a page may show a second version of a file.
            script.append(f"cat >{step.name} <<'END_OF_FILE'\n{step.text}\nEND_OF_FILE")
        elif not step.line.startswith(_SETUP):
            script += [f"echo '@@ {len(typed)}'", step.line, 'echo "@@ status $?"']
            typed.append(step)
    home = {"HOME": str(directory), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    # A line is written at once and as a whole, as at a terminal. With PYTHONUNBUFFERED its end is a second write, also
    # with line_buffering, and the line of another thread can come between.
    site = directory / ".site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\nsys.stdout.reconfigure(line_buffering=True)\n", encoding="utf-8"
    )
    extra = {
        "PYTHONPATH": str(site), "PYTHONUNBUFFERED": "", "COLUMNS": "", "USER": "ada", "LOGNAME": "ada",
    }  # fmt: skip
    done = subprocess.run(
        ["/bin/bash", "-c", "\n".join(script)], cwd=directory, env=os.environ | home | extra,
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    said = re.split(r"^@@ \d+\n", done.stdout, flags=re.MULTILINE)[1:]
    for command, printed in zip(typed, said, strict=True):
        text, _, status = printed.rpartition("@@ status ")
        if command.prints is not None and not agrees(command.prints, text.splitlines()):
            wrong.append(f"$ {command.line}\n{text}")
        if status.strip() != "0" and "|| true" not in command.line:
            wrong.append(f"$ {command.line}\n{text}exit status {status.strip()}")
    return wrong
