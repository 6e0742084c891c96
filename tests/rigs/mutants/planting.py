"""Plants known bugs in a copy of the code, and checks that tests catch them.

A *mutant* is one small change that adds a known bug. Its *catcher* is a test that must then fail. The file
``tests/rigs/mutants/mutants.toml`` lists both. A mutant is caught only if the catcher passes on an unchanged copy and
fails on the changed copy. The failure must be in the test's own body, and must print the words of ``sees``.

    python -m tests.rigs.mutants.planting [NAME…] [--list]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parents[3]
LIST = ROOT / "tests" / "rigs" / "mutants" / "mutants.toml"
TABLE = ROOT / "docs/mutants.md"
COPIED = ("rq_core", "sql_audit", "lua", "tests", "scripts", "pyproject.toml")
CATCHER_TIMEOUT_S = 90
"""The longest time (s) that a catcher may take."""


class DoesNotApply(Exception):
    """Raised if the code no longer has the text that a mutant replaces. The mutant must then be adapted."""


@dataclass(frozen=True)
class Mutant:
    """One planted bug."""

    name: str
    bug: str
    """The effect of the bug, in a few words."""
    file: str
    find: str
    """A text that occurs exactly once in the file."""
    replace: str
    catcher: str
    """The node id of the test that must fail."""
    sees: str
    """A regular expression that the output of the test must match. If the expression has groups, the groups are
    quoted."""
    quick: bool = False
    """True if a slow test in tests/rigs/mutants plants this bug."""

    def apply(self, text: str) -> str:
        """Return the file's text with the bug in it. Raises DoesNotApply if the text to replace does not occur exactly
        once."""
        count = text.count(self.find)
        if count != 1:
            raise DoesNotApply(
                f"{self.name}: {self.file} has {self.find!r} {count} times, not once"
            )
        return text.replace(self.find, self.replace)


class Verdict(StrEnum):
    """The possible results of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    """The catcher passes although the bug is planted."""
    BROKEN = "broken"
    """The catcher fails for another reason: an error outside the test, other words, or no test ran."""
    UNPROVEN = "unproven"
    """The catcher also fails without the bug."""


@dataclass
class Ran:
    """The report of pytest about the tests of one run."""

    passed: int = 0
    skipped: int = 0
    failures: list[str] = field(default_factory=list)
    """The failures in the body of a test."""
    errors: list[str] = field(default_factory=list)
    """The errors outside the body of a test: imports and fixtures."""
    output: str = ""

    @property
    def sound(self) -> bool:
        """Return whether at least one test ran, and every test passed."""
        return self.passed > 0 and not (self.skipped or self.failures or self.errors)


@dataclass(frozen=True)
class Result:
    """The result of one mutant, and the words that its catcher printed."""

    mutant: Mutant
    verdict: Verdict
    seen: str
    seconds: float


def load(path: Path = LIST) -> list[Mutant]:
    """Return the mutants of a list, in its order."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    known = {each.name for each in fields(Mutant)}
    for entry in document["mutant"]:
        assert entry.keys() <= known, f"unknown: {entry.keys() - known}"
    return [Mutant(**entry) for entry in document["mutant"]]


@contextmanager
def copied(root: Path, names: Sequence[str] = COPIED) -> Iterator[Path]:
    """Yield a directory with a copy of the code. The copies keep the times of their files, so compiled files stay
    valid."""
    with tempfile.TemporaryDirectory(prefix="rq-core-mutant-") as directory:
        for name in names:
            source, target = root / name, Path(directory) / name
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy2(source, target)
        yield Path(directory)


def run_tests(root: Path, nodes: Sequence[str], timeout_s: float) -> Ran:
    """Run tests in a copy of the code. Processes that the tests start also import the copy."""
    report = root / "report.xml"
    report.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
        f"--timeout={CATCHER_TIMEOUT_S}", *nodes,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(root)}
    try:
        process = subprocess.run(
            command, cwd=root, env=environment, capture_output=True, text=True, check=False,
            timeout=timeout_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Ran(errors=[f"not done in {timeout_s:.0f} s"])
    ran = Ran(output=process.stdout[-2000:] + process.stderr[-2000:])
    if not report.exists():
        ran.errors.append(f"nothing ran: {ran.output[-250:]}")
        return ran
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - our own file
        said = [f"{each.get('message')}\n{each.text}" for each in case.findall("failure")]
        wrong = [f"{each.get('message')}\n{each.text}" for each in case.findall("error")]
        ran.failures += said
        ran.errors += wrong
        ran.skipped += case.find("skipped") is not None
        ran.passed += not said and not wrong and case.find("skipped") is None
    if process.returncode and not (ran.failures or ran.errors):
        ran.errors.append(f"nothing ran: {ran.output[-250:]}")
    return ran


class Runner:
    """Runs the catchers of mutants on copies of one state of the code."""

    def __init__(self, root: Path, names: Sequence[str] = COPIED) -> None:
        """``names`` are the files and folders below ``root`` that are copied. The files in ``root`` are never
        changed."""
        self.names = names
        self.root = root
        self._unchanged: dict[str, Ran] = {}

    def run(
        self, mutants: Sequence[Mutant], on_result: Callable[[Result], None] = lambda _result: None
    ) -> list[Result]:
        """Return the result of each mutant. Raises DoesNotApply before any test runs."""
        for mutant in mutants:
            mutant.apply(self._text(self.root, mutant))
        results = []
        with copied(self.root, self.names) as base:
            self._assert_imported_from(base)
            catchers = list(dict.fromkeys(mutant.catcher for mutant in mutants))
            together = run_tests(base, catchers, len(catchers) * CATCHER_TIMEOUT_S)
            if together.sound:
                self._unchanged = dict.fromkeys(catchers, together)
            for mutant in mutants:
                began = time.monotonic()
                verdict, seen = self._run(base, mutant)
                results.append(Result(mutant, verdict, seen, time.monotonic() - began))
                on_result(results[-1])
        return results

    def _run(self, base: Path, mutant: Mutant) -> tuple[Verdict, str]:
        if mutant.catcher not in self._unchanged:
            # Something is wrong with one of them. With which?
            self._unchanged[mutant.catcher] = run_tests(base, [mutant.catcher], CATCHER_TIMEOUT_S)
        unchanged = self._unchanged[mutant.catcher]
        if not unchanged.sound:
            said = [*unchanged.failures, *unchanged.errors, "it is skipped"]
            return Verdict.UNPROVEN, f"without the bug: {_line(said[0])}"
        with copied(base, self.names) as copy:
            target = copy / mutant.file
            target.write_text(mutant.apply(self._text(copy, mutant)), encoding="utf-8")
            # Python takes a compiled file for that of a source of the same size and the same second.
            later = time.time() + 60
            os.utime(target, (later, later))
            ran = run_tests(copy, [mutant.catcher], CATCHER_TIMEOUT_S)
        found = next((m for said in ran.failures if (m := re.search(mutant.sees, said))), None)
        if found is not None:
            return Verdict.CAUGHT, _line(": ".join(found.groups() or [found[0]]), 110)
        if ran.sound:
            return Verdict.SURVIVED, "its catcher passes"
        return Verdict.BROKEN, _line([*ran.failures, *ran.errors, "it is skipped"][0])

    @staticmethod
    def _text(root: Path, mutant: Mutant) -> str:
        path = root / mutant.file
        if not path.is_file():
            raise DoesNotApply(f"{mutant.name}: there is no {mutant.file}")
        return path.read_text(encoding="utf-8")

    def _assert_imported_from(self, base: Path) -> None:
        """Assert that Python imports the packages from the copy. A run of the installed packages would prove
        nothing."""
        packages = [name for name in self.names if (base / name / "__init__.py").exists()]
        for name in packages:
            told = subprocess.run(
                [sys.executable, "-c", f"import {name}; print({name}.__file__)"],
                cwd=base, env={**os.environ, "PYTHONPATH": str(base)},
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert Path(told.stdout.strip()).is_relative_to(base), told.stdout


def _line(said: str, length: int = 300) -> str:
    """Return an error as one line without the path of this checkout. Of a traceback only the exception is returned."""
    raised = [line[1:] for line in said.splitlines() if line.startswith("E  ")]
    text = " ".join(" ".join(raised or [said]).split()).replace(f"{ROOT}/", "")
    return text if len(text) <= length else text[: length - 1] + "…"


def table(mutants: Sequence[Mutant], rows: Mapping[str, str]) -> str:
    """Return the text of docs/mutants.md.

    ``rows``: by name, the row of each mutant's last run. Raises KeyError if a mutant has none.
    """
    missed = sum("| **" in rows[mutant.name] for mutant in mutants)
    lines = [
        "<!-- Written by scripts/prove/mutants, which saw what it says. Do not edit. -->",
        "# Mutants",
        "",
        "Bugs that were planted on purpose, each in a copy of the code, and the test that caught each: it",
        "passes on the unchanged copy, and fails on this one with the words that are quoted. The changes are",
        "in `tests/rigs/mutants/mutants.toml`. `scripts/prove/mutants` plants all; `scripts/prove/mutants NAME`",
        "plants one again, and replaces its row. CI plants those with a star, too.",
        "",
        f"{len(mutants) - missed} of {len(mutants)} caught.",
        "",
        "| mutant | the bug | in | caught by | which says | s |",
        "|---|---|---|---|---|---|",
        *(rows[mutant.name] for mutant in mutants),
    ]
    return "\n".join(lines) + "\n"


def row(result: Result) -> str:
    """Return the row of a mutant's run."""
    mutant = result.mutant
    seen = (
        result.seen if result.verdict is Verdict.CAUGHT else f"**{result.verdict}**: {result.seen}"
    )
    return row_start(mutant) + " | ".join(map(_cell, (seen, f"{result.seconds:.1f}"))) + " |"


def row_start(mutant: Mutant) -> str:
    """Return the beginning of a mutant's row: what mutants.toml says of it."""
    cells = (
        mutant.name + " *" * mutant.quick, mutant.bug, f"`{mutant.file}`",
        f"`{mutant.catcher.removeprefix('tests/')}`",
    )  # fmt: skip
    return "| " + " | ".join(map(_cell, cells)) + " | "


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rows_of(page: str) -> dict[str, str]:
    """Return the rows of the page, by the names of their mutants."""
    lines = page.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("|---")), len(lines))
    return {line.split("|")[1].strip(" *"): line for line in lines[start + 1 :]}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/prove/mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(arguments)
    mutants = load()
    unknown = set(options.names) - {mutant.name for mutant in mutants}
    if unknown:
        parser.error(f"there is no mutant {', '.join(sorted(unknown))}; see --list")
    chosen = [m for m in mutants if not options.names or m.name in options.names]
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:34} {mutant.bug}\n{'':34} {mutant.catcher}")  # noqa: T201
        return 0

    def show(result: Result) -> None:
        words = f"{result.mutant.name:34} {result.seconds:6.1f} s  {result.verdict}: {result.seen}"
        print(words, flush=True)  # noqa: T201

    try:
        results = Runner(ROOT).run(chosen, show)
    except DoesNotApply as error:
        parser.exit(2, f"error: {error}\n")
    rows = rows_of(TABLE.read_text(encoding="utf-8")) if options.names else {}
    rows |= {result.mutant.name: row(result) for result in results}
    without = [mutant.name for mutant in mutants if mutant.name not in rows]
    if without:
        print(f"docs/mutants.md stays as it is: no row for {', '.join(without)}")  # noqa: T201
    else:
        TABLE.write_text(table(mutants, rows), encoding="utf-8")
    missed = [result for result in results if result.verdict is not Verdict.CAUGHT]
    print(f"{len(results) - len(missed)} of {len(results)} caught")  # noqa: T201
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
