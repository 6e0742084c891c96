"""The mirror beside the workers: a process of another package, whose command line is found by an entry point."""

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
"""Seconds that the mirror gets to catch up when everything ends."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 30.0
"""Seconds before a mirror that ended is started again; the pause doubles."""
HEALTHY_LIFE_S: Final = 60.0
"""Seconds after which a mirror's end is no longer counted with the ones before."""


class MirrorProcess:
    """Starts the mirror, replaces it when it ends, and lets it catch up at the end."""

    def __init__(self, redis_url: str, prefix: str, audit_url: str) -> None:
        # It ends with its standard input, which ends with this process, however that goes.
        self._command_line = partial(plugins.mirror_command(), redis_url, prefix, audit_url)
        self._process: subprocess.Popen[bytes] | None = None
        self._born = 0.0
        self._made: Sequence[str] = ()
        self._failures = 0
        self._due: float | None = None

    def start(self, made: Sequence[str] = ()) -> None:
        """Start it, in a process group of its own: Ctrl-C leaves it to catch up with the workers' last words. ``made``
        are queues that were made for it just now, until another start says otherwise."""
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
        """Return its exit status; None while it runs."""
        return None if self._process is None else self._process.poll()

    def wait_until_attached(
        self, attached: Callable[[], bool], stopped: Callable[[], bool]
    ) -> int | None:
        """Let the mirror attach to the queues before anything happens in them, so that SQL has their history from
        the first event on. Work does not wait for long: auditing must not stop it.

        Returns the exit status of a mirror that ended instead; it has said why.
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
        """Start it again if it ended, after a pause that grows. To be called now and then."""
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
        """Let it catch up, then end it."""
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
