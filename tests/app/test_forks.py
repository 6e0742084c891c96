"""A preforking server may fork whenever it likes: the child can use the app, whatever a thread was doing with it."""

from __future__ import annotations

from pathlib import Path

from tests.kit.processes import python

MOMENTS = 8


def test_a_child_that_was_forked_during_an_apps_first_use_can_use_it(
    valkey_url: str, tmp_path: Path
) -> None:
    """A lock that a thread of its parent held, of a module that was being imported say, made it wait for ever."""
    with python("tests.rigs.forks", valkey_url, str(MOMENTS), log=tmp_path / "log") as process:
        process.finish(300)
