"""Child processes of tests and rigs: workers, mirrors, producers and commands.

The output of a child goes to a file, which is shown if a wait for the child fails. At its close, a child is killed with
all processes that it has started.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import psutil

from tests.kit.reaper import reaper
from tests.kit.wait import wait_until

ROOT: Final = Path(__file__).parents[2]
SHOWN_MAX: Final = 3_000
"""The number of characters of the output that are shown."""


class Child(subprocess.Popen[bytes]):
    """A child process in its own session, whose output goes to the file ``log``.

    Use it in a ``with`` statement, or close it.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        variables: Mapping[str, str] | None = None,
        *,
        shared: bool = False,
        directory: Path = ROOT,
    ) -> None:
        """Run the command in ``directory``. ``variables`` are added to the environment.

        With ``shared``, the process may outlive its test.
        """
        self._closed = False
        self._log = log
        with log.open("ab") as sink:
            self._start = sink.tell()
            super().__init__(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, **(variables or {})},
                cwd=directory,
                start_new_session=True,
            )
        reaper().watch(self.pid, shared=shared)

    def said(self) -> str:
        """Return what was written into the output file since this process started."""
        return self._log.read_bytes()[self._start :].decode(errors="replace")

    def end_of_log(self) -> str:
        return self.said()[-SHOWN_MAX:]

    @property
    def is_stopped(self) -> bool:
        """Return whether SIGSTOP has suspended the process. Raises AssertionError if it has ended."""
        assert self.poll() is None, self._description()
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def wait(self, timeout: float | None = None) -> int:
        try:
            status = super().wait(timeout)
        except subprocess.TimeoutExpired as error:
            error.add_note(self._description())
            raise
        reaper().release(self.pid)
        return status

    def wait_said(self, text: str, timeout: float = 30.0) -> None:
        """Wait until the output contains this text."""
        wait_until(
            lambda: text in self.said(),
            lambda: f"the process prints {text!r}. {self._description()}",
            timeout=timeout,
        )

    def finish(self, timeout: float) -> str:
        """Wait for the end, and return the output. Raises AssertionError if the exit status is not 0."""
        assert self.wait(timeout) == 0, self._description()
        return self.said()

    def end(self, timeout: float = 30.0) -> str:
        """Send SIGTERM, wait for the end, and return the output. Raises AssertionError if the exit status is not 0."""
        self.terminate()
        return self.finish(timeout)

    def resources(self) -> resource.struct_rusage:
        """Wait for the end, and return the processor time and the memory that the process used."""
        _, status, used = os.wait4(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return used

    def close(self) -> None:
        """Kill all processes of the session that still run, even suspended ones, and reap the child."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _description(self) -> str:
        return f"The process' status is {self.poll()}. Its output:\n{self.end_of_log()}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self._description())
        self.close()


def lives(pid: int) -> bool:
    """Return whether a process runs. A process that has ended but is not reaped yet does not run."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command_of(pid: int) -> str:
    """Return the command line of a process, or an empty text if it has ended."""
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return ""


def python(*words: str, log: Path, variables: Mapping[str, str] | None = None) -> Child:
    """Start ``python -m WORDS``."""
    return Child([sys.executable, "-m", *words], log, variables)


def worker_words(app: str, queues: Sequence[str], url: str) -> list[str]:
    """Return the words after ``python -m`` that start a worker."""
    return ["rq_core.cli", "worker", app, "--queues", ",".join(queues), "--redis", url]


def worker(
    app: str,
    queues: Sequence[str],
    url: str,
    *options: str,
    log: Path,
    variables: Mapping[str, str] | None = None,
) -> Child:
    """Start ``rq-core worker``. With the options ``--processes`` or ``--audit`` it supervises other processes."""
    return python(*worker_words(app, queues, url), *options, log=log, variables=variables)


def mirror(redis_url: str, audit_url: str, *rest: str, log: Path) -> Child:
    """Start the mirror's service. It can suspend itself: see tests/kit/mirror_service.py."""
    return python("tests.kit.mirror_service", redis_url, audit_url, *rest, log=log)


def rq_core(*words: str, timeout: float = 60.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run an rq-core command to its end. The ``options`` are options of `subprocess.run`."""
    options = {"cwd": ROOT, "capture_output": True, "text": True, **options}
    command = [sys.executable, "-m", "rq_core.cli", *words]
    return subprocess.run(command, check=False, timeout=timeout, **options)
