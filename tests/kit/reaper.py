"""Ends the processes that a test run has started, even if the run itself was killed.

Normally fixtures end them. The reaper is a process that reads a pipe from the test run. If the run is killed, the pipe
closes, and the reaper kills each registered process by its id.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path


class Reaper:
    """The reaper process, as the test run sees it."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self._process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C must not end it first
        )
        self.pid = self._process.pid

    def watch(self, pid: int, number: int = signal.SIGKILL, *, shared: bool = True) -> None:
        """Register a process that must end when the run ends.

        With ``shared``, it may outlive the test that starts it, and is no leak.
        """
        if shared:
            self.watched.add(pid)
        self._say(f"watch {pid} {int(number)}")

    def release(self, pid: int) -> None:
        self.watched.discard(pid)
        self._say(f"release {pid} 0")

    def remove_later(self, directory: Path) -> None:
        """Remove a directory at the end of the run."""
        self._say(f"remove {directory}")

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()


@functools.cache
def reaper() -> Reaper:
    """Return the reaper of this run. The first call starts its process."""
    return Reaper()


def close_reaper() -> None:
    if reaper.cache_info().currsize:
        reaper().close()
        reaper.cache_clear()


def main() -> None:
    watched: dict[int, int] = {}
    directories: list[str] = []
    for line in sys.stdin:
        verb, _, rest = line.rstrip("\n").partition(" ")
        if verb == "remove":
            directories.append(rest)
            continue
        pid, number = map(int, rest.split())
        if verb == "watch":
            watched[pid] = number
        else:
            watched.pop(pid, None)
    for pid, number in watched.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
