"""The launcher of tests and rigs shows what a process printed, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.kit import leaks
from tests.kit.processes import Child, lives
from tests.kit.wait import wait_until

HANGS = "import time; print('hello', flush=True); time.sleep(600)"


def python_code(code: str, tmp_path: Path) -> Child:
    return Child([sys.executable, "-c", code], tmp_path / "log")


def test_the_output_is_shown_when_the_process_does_not_end(tmp_path: Path) -> None:
    with python_code(HANGS, tmp_path) as child:
        child.wait_said("hello")
        with pytest.raises(subprocess.TimeoutExpired) as raised:
            child.wait(0.01)

    assert raised.value.__notes__ == ["The process' status is None. Its output:\nhello\n"]


def test_the_output_is_shown_when_the_awaited_words_do_not_come(tmp_path: Path) -> None:
    with python_code(HANGS, tmp_path) as child:
        child.wait_said("hello")
        with pytest.raises(AssertionError, match=r"(?s)prints 'goodbye'.*status is None.*hello"):
            child.wait_said("goodbye", timeout=0.01)


def test_the_output_is_shown_when_the_status_is_not_0(tmp_path: Path) -> None:
    with (
        python_code("print('hello'); raise SystemExit(3)", tmp_path) as child,
        pytest.raises(AssertionError, match=r"(?s)status is 3.*hello"),
    ):
        child.finish(30)


def test_the_output_is_shown_when_the_block_fails(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError) as raised,
        python_code(HANGS, tmp_path) as child,
    ):
        child.wait_said("hello")
        raise ZeroDivisionError

    assert raised.value.__notes__ == ["The process' status is None. Its output:\nhello\n"]


def test_closing_kills_what_the_process_started(tmp_path: Path) -> None:
    """As a killed supervisor's workers, or an isolated job."""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {HANGS!r}])"
    with python_code(code, tmp_path) as child:
        child.wait_said("hello")
        (grandchild,) = psutil.Process(child.pid).children()

    wait_until(lambda: not lives(grandchild.pid), "the grandchild has ended")


def test_a_process_that_a_test_does_not_close_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "GRACE_S", 0.05)
    before = leaks.children()
    with (
        python_code(HANGS, tmp_path) as child,
        pytest.raises(AssertionError, match=str(child.pid)),
    ):
        leaks.assert_no_new_children(before)
