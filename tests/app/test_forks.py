"""An app in a process that forks at any moment, like a preforking web server. The child process can use the app."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rq_core.app.fork_safety import ForkGate
from tests.kit.forked import forked
from tests.kit.processes import python

MOMENTS = 3


@pytest.mark.slow
def test_a_process_forked_during_the_first_use_of_an_app_can_use_the_app(
    valkey_url: str, tmp_path: Path
) -> None:
    """Checks a fork while another thread of the parent holds a lock, for example of an import."""
    with python(
        "scripts.measure.once.forks", valkey_url, str(MOMENTS), log=tmp_path / "log"
    ) as process:
        process.finish(300)


def test_after_two_threads_have_forked_at_the_same_time_the_lock_around_forks_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks that the second fork waits for the first. Each fork releases its own lock."""
    hooks: dict[str, Callable[[], None]] = {}
    monkeypatch.setattr(os, "register_at_fork", lambda **given: hooks.update(given))
    gate = ForkGate(30)
    hooks["before"]()
    with ThreadPoolExecutor(1) as second:
        forking = second.submit(lambda: [hooks[at]() for at in ("before", "after_in_parent")])
        with pytest.raises(TimeoutError):
            forking.result(0.05)
        hooks["after_in_parent"]()
        forking.result(30)
        second.submit(pass_through, gate).result(30)
    pass_through(gate)


def pass_through(gate: ForkGate) -> None:
    with gate.closed():
        pass


def test_a_thread_that_holds_the_lock_around_forks_may_fork_itself() -> None:
    gate = ForkGate(30)

    def in_child() -> str:
        with ThreadPoolExecutor(1) as other, gate.closed():
            return str(other.submit(lambda: gate._lock.acquire(blocking=False)).result(30))

    with gate.closed():
        told = forked(in_child)

    assert "False" == told
    with ThreadPoolExecutor(1) as other:
        other.submit(pass_through, gate).result(30)
