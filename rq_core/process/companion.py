"""The mirror's process beside the workers. Another package has its code; an entry point gives its command line."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from rq_core.model import plugins

log = logging.getLogger(__name__)

ATTACH_WAIT_S: Final = 15.0
"""Seconds that workers wait for the mirror to attach."""
GRACE_S: Final = 60.0
"""Seconds for which the mirror may catch up after the workers' end."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""Longest pause, in seconds, before an ended mirror is started again; PAUSE_S is the first pause, and it doubles."""
HEALTHY_LIFE_S: Final = 60.0
"""Seconds of life after which a mirror's end counts as its first failure again."""


class MirrorProcess:
    """Starts the mirror, replaces it when it ends, and lets it catch up at the end."""

    def __init__(self, redis_url: str, prefix: str, audit_url: str) -> None:
        # The mirror ends with its standard input, which is closed at any end of this process.
        self._command_line = partial(plugins.mirror_command(), redis_url, prefix, audit_url)
        self._process: subprocess.Popen[bytes] | None = None
        self._born = 0.0
        self._made: Sequence[str] = ()
        self._failures = 0
        self._due: float | None = None

    def start(self, made: Sequence[str] = ()) -> None:
        """Start the mirror, in a session of its own: Ctrl-C does not reach it, so that it copies the workers' last
        events. ``made`` are queues that the supervisor has just created; later starts without it repeat them."""
        self._made = made or self._made
        command, environment = self._command_line(self._made)
        self._born = time.monotonic()
        self._due = None
        self._close()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environment},
        )

    @property
    def status(self) -> int | None:
        """The exit status of the mirror's process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until_attached(
        self, attached: Callable[[], bool], stopped: Callable[[], bool]
    ) -> int | None:
        """Wait until the mirror has attached to the queues, so that SQL has their history from the first event on.

        Returns None after ATTACH_WAIT_S at the latest, since auditing must not stop work; or the exit status of a
        mirror that ended instead, which has logged the reason.
        """
        deadline = time.monotonic() + ATTACH_WAIT_S
        while time.monotonic() < deadline and not stopped():
            if attached():
                return None
            status = self.status
            if status is not None:
                return status
            time.sleep(0.02)
        if not stopped():
            log.warning(
                "the mirror has not attached to all queues yet; the workers start without it"
            )
        return None

    def watch(self) -> None:
        """Start the mirror again if it has ended, after a growing pause. The supervisor calls this repeatedly."""
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
        log.error("the mirror ended with status %d, restarting it in %g s", status, pause)
        self._due = now + pause

    def end(self) -> None:
        """End the mirror after it has caught up; kill it after GRACE_S."""
        process = self._process
        if process is None:
            return
        # By its standard input, not by SIGTERM: a mirror that is still starting has no handler for that yet, and would
        # die with the workers' last events unmirrored.
        self._close()
        try:
            process.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            log.warning(
                "the mirror did not catch up in %g s; the other events wait in Redis for the next mirror",
                GRACE_S,
            )
            process.kill()
            process.wait()

    def _close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
