"""A row in the table of fields adds a field to all stores and calls: no other code changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit import added_field
from tests.kit.processes import Child

TIMEOUT_S = 120
BOTH = ["hue=7", "shade=teal"]
LINES = {
    "plain": BOTH, "kept": ["shade=teal"], "later": BOTH, "lane": ["hue=7"], "unique": ["hue=7"], "without": [],
}  # fmt: skip
VALUES = {
    "plain": [7, "teal"], "kept": [None, "teal"], "later": [7, "teal"], "lane": [7, None], "unique": [7, None],
    "without": [None, None],
}  # fmt: skip


def followed(tree: Path, valkey_url: str, audit_url: str) -> dict[str, Any]:
    """Run the program with two added fields, and return what each store has in these fields."""
    added_field.grow(tree)
    command = [sys.executable, "-m", "tests.audit.added_field", valkey_url, audit_url]
    with Child(command, tree / "log", {"PYTHONPATH": str(tree)}, directory=tree) as child:
        assert child.wait(TIMEOUT_S) == 0, child.said()
        told: dict[str, Any] = json.loads(child.said().splitlines()[-1])
        return told


@pytest.mark.slow
def test_a_field_added_to_the_table_reaches_redis_sql_verify_and_restore(
    tmp_path: Path, valkey_url: str, audit_url: str
) -> None:
    told = followed(tmp_path, valkey_url, audit_url)

    assert all(told["refused"])
    assert len(told["refused"]) == len(added_field.WRONG)
    assert told["line"] == LINES
    assert told["enqueued"] == told["row"] == VALUES
    assert told["line of a claim"] == BOTH
    assert told["baseline"] == VALUES
    assert told["put back"] == len(LINES)
    assert told["restored"] == told["row after it"] == VALUES
    assert told["line after it"] == LINES
    assert set(told["ran"]) == LINES.keys() - {"later"}
    lie, other = told["lies"]
    assert "hue_ms" in " ".join(lie)
    assert "shade" in " ".join(other)
