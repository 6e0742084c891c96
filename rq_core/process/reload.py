"""Notices that Python files have changed, so that ``rq-core worker --reload`` runs the new code.

It looks at all files twice a second: a few hundred take a millisecond, and no library is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

LOOK_EVERY_S: Final = 0.5
"""Seconds between two looks."""
FILES_MAX: Final = 20_000
"""Files that are looked at; changes of others are not noticed."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules"})

Stamp = tuple[int, int]
"""When a file was changed (ns), and its size."""


class SourceFiles:
    """The ``.py`` files below a directory. Hidden directories and virtual environments are left out."""

    def __init__(self, root: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._root = root
        self._clock = clock
        self._seen = self._look()
        self._due = clock() + LOOK_EVERY_S

    def changed(self) -> Path | None:
        """Return a file that was changed, made or removed since the last look; None if none was, or it is too early to
        look again."""
        if self._clock() < self._due:
            return None
        before, self._seen = self._seen, self._look()
        self._due = self._clock() + LOOK_EVERY_S
        differing = dict(before.items() ^ self._seen.items())
        return min(differing, default=None)

    def _look(self) -> dict[Path, Stamp]:
        found: dict[Path, Stamp] = {}
        for path in _python_files(self._root):
            try:
                facts = path.stat()
            except OSError:
                continue  # It was removed meanwhile.
            found[path] = facts.st_mtime_ns, facts.st_size
            if len(found) == FILES_MAX:
                break
        return found


def _python_files(root: Path) -> Iterator[Path]:
    for where, directories, names in os.walk(root):
        directories[:] = sorted(
            each
            for each in directories
            if not each.startswith(".")
            and each not in _SKIPPED
            and not Path(where, each, "pyvenv.cfg").exists()
        )
        yield from (Path(where, name) for name in sorted(names) if name.endswith(".py"))
