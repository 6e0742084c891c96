"""A process beside the workers: the mirror, or a relay. The process runs code of another package, which gives the
command line by an entry point."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from rq_core.model.lib.readiness import AWAY, READY, READY_VARIABLE

log = logging.getLogger(__name__)

READY_WAIT_S: Final = 15.0
"""Seconds that workers wait for a process to be ready."""
GRACE_S: Final = 60.0
"""Seconds for which the process may finish its work after the workers' end."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""Longest pause, in seconds, before an ended process is started again. The first pause is PAUSE_S; each further pause
is twice as long as the pause before."""
HEALTHY_LIFE_S: Final = 60.0
"""Seconds that a process must have run for its end to count as its first failure again."""


class CommandLine(Protocol):
    """A function that returns the command line of a process, and the variables to add to its environment.

    ``made`` are queues that were created just now. The process ends when its standard input is closed."""

    def __call__(self, made: Sequence[str], /) -> tuple[list[str], dict[str, str]]: ...


class Companion:
    """Starts the process, replaces it when it ends, and lets it finish its work at the end."""

    def __init__(self, name: str, command_line: CommandLine) -> None:
        """``name`` is the process' name in the log, such as ``the mirror``."""
        self._name = name
        # The process ends with its standard input, which is closed at any end of this process.
        self._command_line = command_line
        self._process: subprocess.Popen[bytes] | None = None
        self._born = 0.0
        self._made: Sequence[str] = ()
        self._ready: int | None = None
        """The end of the pipe from which this process reads READY or AWAY."""
        self._failures = 0
        self._due: float | None = None

    def start(self, made: Sequence[str] = ()) -> None:
        """Start the process, in a session of its own: Ctrl-C does not reach it, so that it outlives the workers.
        ``made`` are queues that the supervisor has just created; later starts without ``made`` use these queues
        again."""
        self._made = made or self._made
        command, environment = self._command_line(self._made)
        self._born = time.monotonic()
        self._due = None
        self._close()
        self._ready, says = os.pipe()
        os.set_blocking(self._ready, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                start_new_session=True,
                pass_fds=(says,),
                env={**os.environ, **environment, READY_VARIABLE: str(says)},
            )
        finally:
            os.close(says)

    @property
    def status(self) -> int | None:
        """The exit status of the process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until_ready(
        self, ready: Callable[[], bool], stopped: Callable[[], bool], unready: str
    ) -> int | None:
        """Wait until the process says that it is ready and ``ready`` returns true. After READY_WAIT_S, end the wait and
        log ``unready``, a sentence.

        Returns the exit status if the process ended instead; the process has logged the reason. Otherwise returns None,
        even if the process is not ready: a slow process must not keep the workers from starting. Neither must a
        database that does not answer, if ``ready`` returns true without it; ``watch`` then starts the process again.
        """
        deadline = time.monotonic() + READY_WAIT_S
        said = b""
        while time.monotonic() < deadline and not stopped():
            status = self.status
            said = said or self._said()
            if said == READY and ready():
                return None
            if status is not None:
                if said != AWAY or not ready():
                    return status
                break
            time.sleep(0.02)
        if not stopped():
            log.warning(unready)
        return None

    def _said(self) -> bytes:
        assert self._ready is not None
        try:
            return os.read(self._ready, 1)
        except BlockingIOError:
            return b""

    def watch(self) -> None:
        """Start the process again if it has ended, after a growing pause. The supervisor calls this repeatedly."""
        now = time.monotonic()
        if self._due is not None:
            if self._due <= now:
                self.start()
            return
        status = self.status
        if status is None:
            return
        self._failures = 1 if now - self._born > HEALTHY_LIFE_S else self._failures + 1
        pause = min(PAUSE_S * 2 ** (self._failures - 1), PAUSE_S_MAX)
        log.error("%s ended with status %d, restarting it in %g s", self._name, status, pause)
        self._due = now + pause

    def end(self) -> None:
        """End the process after it has finished its work; kill it after GRACE_S."""
        process = self._process
        if process is None:
            return
        # By its standard input, not by SIGTERM: a process that is still starting has no handler for that yet, and a
        # mirror would die with the workers' last events unmirrored.
        self._close()
        try:
            process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            log.warning(
                "%s did not finish in %g s; the next one does what is left", self._name, GRACE_S
            )
            process.kill()
            process.wait()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._ready is not None:
            os.close(self._ready)
            self._ready = None
