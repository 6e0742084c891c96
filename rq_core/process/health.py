"""Whether the workers of this machine work: how long ago each last claimed, successfully.

A process that lives, and a server that answers PING, say nothing of a worker that is deaf. So each worker touches a
small file of its own whenever Redis has answered a claim, which also happens every few seconds when there is nothing to
do, or no room. `rq-core health` and the HTTP probe look at how old the files are.
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
"""Seconds since its last claim from which on a worker is not healthy. Idle ones claim every 5 s at least."""
TOUCH_EVERY_S: Final = 1.0
PATH_MAX: Final = 100
"""Characters of a requested path that are logged."""


class Answer(NamedTuple):
    """The response of a page."""

    status: int
    content_type: str
    body: bytes


Page = Callable[[], Answer]
"""Makes a page when it is asked for, on the thread of the request."""


def pulse_directory() -> Path:
    """Return the directory of this user's worker files; below TMPDIR, for this boot only."""
    return Path(tempfile.gettempdir()) / f"rq-core-workers-{os.getuid()}"


class Pulse:
    """A worker's file, touched after claims. An error with it is logged once, and harms no job."""

    def __init__(self, place: Path | None = None) -> None:
        self._place = place or pulse_directory()
        self._file: Path | None = None
        self._touched = 0.0

    def start(self, worker: str, queues: Iterable[str], *, server: str = "") -> None:
        """Make the file; the worker's time to claim for the first time begins. ``server`` is shown as it is given,
        so without passwords."""
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
        """Note that Redis has answered a claim."""
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
        """Remove the file: the worker ends in order."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


@dataclass(frozen=True)
class WorkerHealth:
    """The state of one worker process."""

    worker: str
    pid: int
    parent: int
    """The process id of its supervisor, if it has one."""
    queues: list[str]
    """The queues that it works for."""
    age_s: float
    """Seconds since Redis last answered a claim of it, or since it began."""
    stopped: bool = False
    """Whether a signal (SIGSTOP) has stopped it. No heartbeat keeps its leases meanwhile."""
    server: str = ""
    """The URL of its Redis, without passwords, and the prefix if it is another than the default."""


def local_workers(place: Path | None = None) -> list[WorkerHealth]:
    """Return the workers of this user on this machine, by name. Files of dead workers are removed."""
    found = []
    for file in sorted((place or pulse_directory()).glob("*.json")):
        try:
            facts = json.loads(file.read_text())
            age = max(0.0, time.time() - file.stat().st_mtime)
            seen = {"age_s": round(age, 1), "stopped": is_stopped(facts["pid"])}
            health = WorkerHealth(**{**facts, **seen})
        except (OSError, ValueError, TypeError, KeyError):
            # It is just being written, or has just gone.
            continue
        if exists(health.pid):
            found.append(health)
        else:
            file.unlink(missing_ok=True)
    return found


def verdict(found: Iterable[WorkerHealth], max_age: float) -> tuple[bool, dict[str, Any]]:
    """Return whether these workers are healthy, and a report: one is needed, and none may be deaf or stopped."""
    known = list(found)
    ages = [each.age_s for each in known]
    healthy = bool(known) and max(ages) <= max_age and not any(each.stopped for each in known)
    report = {"healthy": healthy, "max_age_s": max_age, "age_s": max(ages, default=None)}
    return healthy, report | {"workers": [asdict(each) for each in known]}


class Probe(HttpPort):
    """Answers HTTP requests about this process' workers: 200 if they are healthy, 503 if not; the body is JSON.

    ``pages`` have paths of their own, such as /metrics.
    """

    def __init__(
        self,
        address: str,
        *,
        max_age: float = AGE_S_MAX,
        place: Path | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        """Raises InvalidOption, also if the address cannot be had."""
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
                    # The worker goes on, whatever a page comes upon.
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
    """Answer HTTP requests during the block, if an address is given; ``pages`` as Probe has them."""
    if address is None:
        yield
        return
    with contextlib.closing(Probe(address, pages=pages)):
        yield
