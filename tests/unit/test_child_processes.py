"""The child processes of tests and rigs. Their output is shown after a failure, and none of them is left behind."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit import leaks
from tests.kit.processes import Child

HANGS = "import time; print('hello', flush=True); time.sleep(600)"


def python_code(code: str, tmp_path: Path) -> Child:
    return Child([sys.executable, "-c", code], tmp_path / "log")


def test_the_output_of_a_child_process_is_shown_when_the_block_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError) as raised,
        python_code(HANGS, tmp_path) as child,
    ):
        child.wait_said("hello\n")
        raise ZeroDivisionError

    assert raised.value.__notes__ == ["The process' status is None. Its output:\nhello\n"]


def test_a_process_that_a_test_does_not_close_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.05)
    before = leaks.children()
    with (
        python_code(HANGS, tmp_path) as child,
        pytest.raises(AssertionError, match=str(child.pid)),
    ):
        leaks.assert_no_new_children(before)
