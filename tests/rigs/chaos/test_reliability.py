"""The page docs/reliability.md names only faults and tests that exist. A new table is written into its place on the
page."""

from __future__ import annotations

import re

import pytest

from tests.kit.processes import ROOT
from tests.rigs.chaos import measured
from tests.rigs.chaos.nemesis import KINDS

TEXT = measured.FILE.read_text()
SAID = {
    "kinds": {"flushall": {"recovered": 2, "recovery_p50_s": 0.5, "recovery_max_s": 1}},
    **dict.fromkeys(measured.COLUMNS.values(), 3),
    "verify": "holds",
}


def section(name: str) -> str:
    return TEXT.partition(f"## {name}\n")[2].partition("\n## ")[0]


def test_the_page_on_reliability_describes_every_kind_of_fault() -> None:
    described = set(re.findall(r"^\| `(\w+)` \|", section("The faults"), flags=re.MULTILINE))

    assert described == set(KINDS)


def test_each_row_of_the_list_of_faults_names_existing_scripts_and_tests() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", section("The list of faults"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 32))
    for number, attacked in rows:
        words = re.findall(r"`([^`]+)`", attacked)
        places = [word.partition(" ")[0] for word in words if "/" in word]
        assert all((ROOT / place).exists() for place in places), f"{number}: {places}"
        # Other words in this form are kinds, or settings of Redis, which have hyphens.
        kinds = [word for word in words if "/" not in word and "-" not in word]
        assert set(kinds) <= set(KINDS), f"{number}: {kinds}"
        assert places or kinds


def test_a_row_of_the_table_of_faults_has_the_figures_of_the_run() -> None:
    assert measured.row("flushall", SAID) == (
        "| `flushall` | " + "3 | " * len(measured.COLUMNS) + "2 | 0.50 | 0.00 | 1.00 | holds |"
    )


def test_the_table_of_faults_is_written_only_between_its_marks() -> None:
    table = measured.table({"flushall": SAID})
    once = measured.written(TEXT, table)

    assert once.count(table) == 1
    assert measured.written(once, table) == once
    assert len(table.splitlines()[0].split("|")) == len(table.splitlines()[2].split("|"))
    with pytest.raises(ValueError, match="no place"):
        measured.written("nothing", table)
