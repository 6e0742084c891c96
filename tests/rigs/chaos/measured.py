"""Measures each kind of fault in a run of its own, and writes the results into docs/reliability.md."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from tests.kit.processes import ROOT

FILE: Final = ROOT / "docs/reliability.md"
BEGIN: Final = "<!-- written by scripts/prove/live reliability -->"
END: Final = "<!-- end of what scripts/prove/live reliability writes -->"
COLUMNS: Final = {
    "times": "faults",
    "attempted": "attempted",
    "acknowledged": "acknowledged",
    "succeeded": "succeeded",
    "lost": "lost",
    "unreported": "unreported_loss",
    "unexpected": "unexpected",
    "twice, explained": "duplicated_explained",
    "not": "duplicated_unexplained",
    "over a cap": "cap_violations",
}
"""The columns of the table: the heading of each column, and the name of its figure in the output of a run."""


def row(kind: str, said: Mapping[str, Any]) -> str:
    """Return one line of the table in Markdown. ``said`` is the JSON of a run with one kind of fault."""
    mine = said["kinds"].get(kind, {"recovered": 0})
    times = [f"{mine.get(f'recovery_{name}_s', 0):.2f}" for name in ("p50", "p99", "max")]
    cells = [f"`{kind}`", *(str(said[name]) for name in COLUMNS.values())]
    return "| " + " | ".join([*cells, str(mine["recovered"]), *times, said["verify"]]) + " |"


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    names = ["fault", *COLUMNS, "recovered", "p50 s", "p99 s", "max s", "`verify`"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += [row(kind, found[kind]) for kind in sorted(found)]
    held = found.get("worker_kill")
    if held is not None:
        p50, most = held["held_p50_s"], held["held_max_s"]
        lines.append("")
        lines.append(
            f"The jobs that killed workers held were claimed again {p50:.2f} s after the kill (median),"
            f" at most {most:.2f} s; their lease is 2 s."
        )
    return "\n".join(lines)


def written(text: str, between: str) -> str:
    """Return the page with the new table between the two marks. Raises ValueError if the page has no marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no place between {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{between}\n{END}{tail}"


def _measure(kind: str, words: Sequence[str]) -> dict[str, Any]:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.rigs", "chaos", "--kind", kind, "--json", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    lines = ran.stdout.splitlines()
    if not lines:
        raise click.ClickException(f"{kind} ended with {ran.returncode}: {ran.stderr[-2_000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    click.echo(row(kind, found))
    return found


def measure(
    kinds: Sequence[str], words: Sequence[str], parallel: int, into: Path | None
) -> list[str]:
    """Run chaos once for each kind of fault, and return the promises that were not met.

    ``into`` is the page into which the table is written, if it is given.
    """
    with ThreadPoolExecutor(parallel) as pool:
        runs = pool.map(lambda kind: _measure(kind, words), kinds)
        found = dict(zip(kinds, runs, strict=True))
    if into is not None:
        into.write_text(written(into.read_text(), table(found)))
    return [f"{kind}: {each}" for kind, said in found.items() for each in said["problems"]]
