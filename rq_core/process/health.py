"""Checks whether the workers of this machine work: how long ago Redis answered the last claim of each worker.

A worker may get no jobs although its process lives and the server answers PING. So each worker touches a file of its
own when Redis has answered a claim. A worker claims every few seconds, even if no job waits or the worker has no free
place. ``rq-core health`` and the HTTP port read the ages of these files.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, NamedTuple

from rq_core.model.lib.text import printable, shorten
from rq_core.process.http_port import HttpPort
from rq_core.process.process_exit import exists, is_stopped

log = logging.getLogger(__name__)

AGE_S_MAX: Final = 30.0
"""Maximum seconds since the last claim of a healthy worker. Idle workers claim at least every 5 s."""
TOUCH_EVERY_S: Final = 1.0
PATH_MAX: Final = 100
"""Maximum number of characters of a requested path in the log."""


class Answer(NamedTuple):
    """The HTTP response of a page: status, content type and body."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]
"""A function that makes a page. It runs on the thread of the request."""


def pulse_directory() -> Path:
    """Return the directory of the files of this user's workers. It is in the directory for temporary files."""
    return Path(tempfile.gettempdir()) / f"rq-core-workers-{os.getuid()}"


class Pulse:
    """The file of one worker. The file's age shows when Redis last answered a claim of the worker. An error about the
    file is logged once; jobs go on."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place or pulse_directory()
        self._file: Path | None = None
        self._touched = 0.0

    def start(self, worker: str, queues: Iterable[str], *, server: str = "") -> None:
        """Create the file. Its age counts from now. Health checks show the text ``server`` unchanged, so it must not
        contain a password."""
        try:
            self._place.mkdir(mode=0o700, exist_ok=True)
            owner = self._place.lstat()
            if not stat.S_ISDIR(owner.st_mode) or owner.st_uid != os.getuid():
                raise PermissionError(f"{self._place} belongs to another user")
            local_workers(self._place)  # Removes the files of killed workers.
            facts = {"pid": os.getpid(), "parent": os.getppid(), "worker": worker, "server": server}
            file = self._place / f"{worker}.json"
            file.write_text(json.dumps(facts | {"queues": list(queues)}))
        except OSError as error:
            log.warning("`rq-core health` will not see this worker: %s", error)
            return
        self._file = file

    def beat(self) -> None:
        """Touch the file, at most once in TOUCH_EVERY_S. The worker calls this when Redis has answered a claim."""
        now = time.monotonic()
        if self._file is None or now - self._touched < TOUCH_EVERY_S:
            return
        self._touched = now
        try:
            os.utime(self._file)
        except OSError as error:
            log.warning("`rq-core health` will take this worker for dead: %s", error)
            self._file = None

    def end(self) -> None:
        """Remove the file, at the regular end of the worker."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


@dataclass(frozen=True)
class WorkerHealth:
    """The health of one worker process on this machine."""

    worker: str
    pid: int
    parent: int
    """The process id of the worker's parent. The parent is the supervisor, if the worker has one."""
    queues: list[str]
    """The queues for which the worker works."""
    age_s: float
    """Seconds since Redis last answered a claim of the worker, or since the worker began."""
    stopped: bool = False
    """True if a signal (SIGSTOP) has stopped the process. No heartbeat extends the worker's leases meanwhile."""
    server: str = ""
    """The URL of the worker's Redis, without passwords, and the prefix if it is not the default."""


def local_workers(place: Path | None = None) -> list[WorkerHealth]:
    """Return the workers of this user on this machine, ordered by the names of the workers' files. Files of dead
    workers are removed."""
    found = []
    for file in sorted((place or pulse_directory()).glob("*.json")):
        try:
            facts = json.loads(file.read_text())
            age = max(0.0, time.time() - file.stat().st_mtime)
            seen = {"age_s": round(age, 1), "stopped": is_stopped(facts["pid"])}
            health = WorkerHealth(**{**facts, **seen})
        except (OSError, ValueError, TypeError, KeyError):
            # The file is being written, or was removed just now.
            continue
        if exists(health.pid):
            found.append(health)
        else:
            file.unlink(missing_ok=True)
    return found


def verdict(found: Iterable[WorkerHealth], max_age: float) -> tuple[bool, dict[str, Any]]:
    """Return whether these workers are healthy, and a report for JSON.

    They are healthy if there is at least one worker, all workers have claimed within ``max_age`` seconds, and no worker
    is stopped by a signal.
    """
    known = list(found)
    ages = [each.age_s for each in known]
    healthy = bool(known) and max(ages) <= max_age and not any(each.stopped for each in known)
    report = {"healthy": healthy, "max_age_s": max_age, "age_s": max(ages, default=None)}
    return healthy, report | {"workers": [asdict(each) for each in known]}


class Probe(HttpPort):
    """Answers HTTP requests about the workers of this process and of its children: 200 if all are healthy, else 503.
    The body is JSON.

    ``pages`` are further pages by path, such as /metrics.
    """

    def __init__(
        self,
        address: str,
        *,
        max_age: float = AGE_S_MAX,
        place: Path | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        """Listen at ``address``. A worker is unhealthy if its last claim is more than ``max_age`` seconds old. Raises
        InvalidOption if the address is invalid, or the process cannot listen at it."""
        me = os.getpid()
        shown = pages or {}

        def healthy() -> Answer:
            mine = [each for each in local_workers(place) if me in (each.pid, each.parent)]
            fine, report = verdict(mine, max_age)
            return Answer(200 if fine else 503, "application/json", json.dumps(report).encode())

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                try:
                    answer = shown.get(self.path.partition("?")[0], healthy)()
                except Exception:
                    # An error of a page must not stop the worker.
                    log.exception("the page %s failed", printable(shorten(self.path, PATH_MAX)))
                    answer = Answer(500, "text/plain; charset=utf-8", b"see the worker's log\n")
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

        super().__init__(address, Handler)


@contextlib.contextmanager
def probing(address: str | None, pages: Mapping[str, Page] | None = None) -> Any:
    """Answer HTTP requests about the workers' health at ``address`` during the block. Do nothing without an address
    (None).
    """
    if address is None:
        yield
        return
    with contextlib.closing(Probe(address, pages=pages)):
        yield
