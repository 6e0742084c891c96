"""A companion: a mirror or a relay that runs in a process beside the workers. An entry point of another package returns
its command line."""

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
"""Seconds for which the start of the workers waits until the companion (a mirror or a relay) is ready."""
GRACE_S: Final = 60.0
"""Seconds for which a companion (a mirror or a relay) may finish its work after the workers' end."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""Longest pause, in seconds, before a companion that ended is started again. The first pause is PAUSE_S; each further
pause is twice as long."""
HEALTHY_LIFE_S: Final = 60.0
"""Seconds after which a companion's process counts as healthy. If it ends later, the pause before the next start is
PAUSE_S again."""


class CommandLine(Protocol):
    """A function that returns a companion's command line, and variables to add to the environment of its process.

    ``made`` are queues that were created just now. The process must end when its standard input is closed.
    """

    def __call__(self, made: Sequence[str], /) -> tuple[list[str], dict[str, str]]: ...


class Companion:
    """Runs one companion (a mirror or a relay): starts its process, and starts it again if it ends early. When the
    workers have ended, the companion may finish its work.
    """

    def __init__(self, name: str, command_line: CommandLine) -> None:
        """Create a companion without starting it. ``name`` is its name in the log, such as ``the mirror``."""
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
        """Start the process. The process gets a session of its own, so that Ctrl-C does not end it before the workers.

        ``made`` are queues that the supervisor has just created. Without ``made``, the queues of the last start are
        used again.
        """
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
        """The exit status of the process; None while it runs, and before its first start."""
        return None if self._process is None else self._process.poll()

    def wait_until_ready(
        self, ready: Callable[[], bool], stopped: Callable[[], bool], unready: str
    ) -> int | None:
        """Wait until the process reports that it is ready and ``ready`` returns true. After READY_WAIT_S, stop waiting
        and log the sentence ``unready``.

        Returns the exit status if the process has ended instead. Otherwise returns None, even if the process is not
        ready, so that the workers can start without a slow process.

        Also returns None if the process has ended because its database does not answer, but ``ready`` returns true
        nevertheless. Then ``watch`` starts the process again.
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
        """Start the process again if it has ended. The pause before each new start grows. The supervisor calls this
        method repeatedly."""
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
        """Let the process finish its work and end. Kill the process if it has not ended after GRACE_S."""
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
