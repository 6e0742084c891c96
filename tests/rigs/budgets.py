"""Budgets: one table of upper limits for costs. A cost is a count, which does not depend on the machine.

    budgets.check("redis_calls", "claim.100", calls)

`scripts/measure/budgets` sets each budget to the current count plus a small reserve (``slack``). A later change that
costs more than that fails a test.
"""

import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

TABLE = Path(__file__).parents[1] / "budgets" / "budgets.toml"
COUNTED = "RQ_CORE_BUDGETS_COUNTED"
"""The environment variable with the path of a file to which every count is added, for `scripts/measure/budgets`."""

_ROW = re.compile(r'^"(?P<name>[^"]+)" = (?P<number>[\d.]+)$')
_SECTION = re.compile(r"^\[(?P<name>\w+)\]$")


def table() -> dict[str, dict[str, float]]:
    """Return the budgets, by section and name."""
    with TABLE.open("rb") as file:
        return tomllib.load(file)


def check(section: str, name: str, found: float) -> None:
    """Raise AssertionError if the count exceeds its budget, or if it has no budget.

    If the environment variable RQ_CORE_BUDGETS_COUNTED names a file, only append the count to the file.
    """
    if where := os.environ.get(COUNTED):
        with Path(where).open("a") as file:
            file.write(json.dumps([section, name, found]) + "\n")
        return
    budget = table()[section].get(name)
    assert budget is not None, f"no budget: add it to {TABLE.name}, [{section}], {name!r} = {found}"
    assert found <= budget, (
        f"over budget: {section} {name!r} is {found:g}, at most {budget:g}. If it has to cost more, change it in"
        " tests/budgets/budgets.toml and say in the commit what is had for it"
    )


def tightened(text: str, counted: Mapping[tuple[str, str], float]) -> str:
    """Return the text of the table with new budgets. A new budget is the measured count plus the reserve of its
    section.

    A row without a measured count does not change.
    """
    lines, section = [], ""
    slack = {name: rows.get("slack", 0.0) for name, rows in tomllib.loads(text).items()}
    for line in text.splitlines():
        if head := _SECTION.match(line):
            section = head["name"]
        row = _ROW.match(line)
        if row and (section, row["name"]) in counted:
            most = math.ceil(counted[section, row["name"]] * (1 + slack[section]))
            line = f'"{row["name"]}" = {most}'  # noqa: PLW2901 - the line is what is changed
        lines.append(line)
    return "\n".join(lines) + "\n"


def tighten(counts: Path) -> None:
    """Write the table of budgets again from a file of counts. If a budget has several counts, the highest is used."""
    counted: dict[tuple[str, str], float] = {}
    for line in counts.read_text().splitlines():
        section, name, found = json.loads(line)
        counted[section, name] = max(found, counted.get((section, name), 0))
    before = TABLE.read_text()
    after = tightened(before, counted)
    for old, new in zip(before.splitlines(), after.splitlines(), strict=True):
        if old != new:
            print(f"{old}  →  {new.rpartition(' ')[2]}")  # noqa: T201 - what it is called for
    TABLE.write_text(after)


if __name__ == "__main__":
    tighten(Path(sys.argv[1]))
