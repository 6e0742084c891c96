"""Rehearses an upgrade under load: processes of two commits of rq-core run at the same time.

    scripts/measure/once/run mixed-fleet OLD NEW --seconds 20

It checks out both commits, and replaces mirror, workers and producers in the order of docs/how-to/upgrade.md. Meanwhile
producers of both commits enqueue, and a worker of each is killed. Then the workers go back to the old commit. Each
acknowledged job must have succeeded, and `audit verify --redis` of the newer commit must hold.

At the end, programs with another layout, and an audit database with another schema, must be refused with a message.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.kit.processes import ROOT, Child
from tests.kit.servers import RedisServer, engines
from tests.kit.wait import wait_until

QUEUE: Final = "fleet"
END_S: Final = 120.0
"""Maximum seconds for the backlog to be worked off, and for the mirror to catch up."""
_FLEET: Final = """
import os, sys, time
from rq_core import App, Cap, RetryPolicy, RqCoreError, current_job

app = App()


@app.task(queue="fleet", caps=[Cap(4, per="tenant")], retry=RetryPolicy(max_attempts=4, base=0.05))
def work(n: int, tenant: str) -> int:
    job = current_job()
    with open("witness", "a") as file:
        file.write(f"{job.id} {job.claim} {os.environ['FLEET']}\\n")
    time.sleep(0.02)
    if n % 17 == 0 and job.failures == 0:
        raise ConnectionError(n)
    return n


def produce() -> None:
    n = 0
    while True:
        n += 1
        options = {"delay": 0.3} if n % 5 == 0 else {"keep_result": 60} if n % 7 == 0 else {}
        try:
            if n % 20 == 0:
                ids = app.enqueue_many(work.job(n, f"t{k}") for k in range(10)).ids
            else:
                ids = [work.with_options(**options).enqueue(n, f"t{n % 6}").id]
            print("accepted", *ids, flush=True)
        except RqCoreError as error:
            print("refused", type(error).__name__, error, flush=True)
            time.sleep(0.2)
        time.sleep(0.01)


if __name__ == "__main__":
    produce()
"""


@dataclass
class Fleet:
    """The processes of two commits, with one server and one audit database."""

    directory: Path
    redis_url: str
    running: dict[str, Child] = field(default_factory=dict)
    logs: list[Path] = field(default_factory=list)

    @property
    def audit(self) -> Path:
        return self.directory / "audit.db"

    def environment(self, commit: str) -> dict[str, str]:
        """Return the environment variables with which Python imports the code of a commit."""
        return {
            "PYTHONPATH": str(self.directory / commit),
            "RQ_CORE_REDIS_URL": self.redis_url,
            "RQ_CORE_AUDIT_URL": str(self.audit),
            "FLEET": commit,
        }

    def start(self, name: str, commit: str, *words: str) -> None:
        """Start a process with the code of a commit. Its output goes to its own file."""
        log = self.directory / f"{len(self.logs)}-{name}.log"
        self.logs.append(log)
        command = [sys.executable, *words]
        self.running[name] = Child(command, log, self.environment(commit), directory=self.directory)

    def worker(self, name: str, commit: str) -> None:
        queues = ("--queues", QUEUE, "--concurrency", "4", "--grace", "5")
        self.start(name, commit, "-m", "rq_core.cli", "worker", "fleet", *queues)

    def mirror(self, name: str, commit: str) -> None:
        self.start(name, commit, "-m", "rq_core.cli", "audit", "run")

    def producer(self, name: str, commit: str) -> None:
        self.start(name, commit, "fleet.py")

    def stop(self, *names: str, by: int = signal.SIGTERM) -> None:
        """Send a signal to processes, and wait until they have ended."""
        for name in names:
            self.running[name].send_signal(by)
        for name in names:
            self.running.pop(name).wait(60)

    def command(self, commit: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the code of a commit, and wait for its end."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.directory,
            env=os.environ | self.environment(commit),
            capture_output=True,
            text=True,
            timeout=END_S,
            check=False,
        )

    def lines(self, word: str) -> list[str]:
        """Return the lines that any process printed with this first word, without the word."""
        found = (line for log in self.logs for line in log.read_text(errors="replace").splitlines())
        return [line.removeprefix(f"{word} ") for line in found if line.startswith(f"{word} ")]

    def claims(self) -> Counter[str]:
        """Return commit → number of claims by its workers, from the file that the handlers write."""
        witness = self.directory / "witness"
        lines = witness.read_text().splitlines() if witness.exists() else []
        return Counter(line.split()[2] for line in lines)

    def until(self, what: str, predicate: Callable[[], bool]) -> None:
        """Wait until ``predicate`` holds. Raises AssertionError with the last output of all processes."""

        def failed() -> str:
            ends = {log.name: log.read_text(errors="replace")[-600:] for log in self.logs}
            return f"{what}; {json.dumps(ends, indent=1)}"

        wait_until(predicate, failed, timeout=END_S)

    def close(self) -> None:
        for child in self.running.values():
            child.close()


def _path(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise SystemExit(f"{program} is not installed")
    return found


def check_out(commit: str, place: Path) -> None:
    """Write the files of a commit into a directory."""
    place.mkdir()
    archive = subprocess.run(
        [_path("git"), "archive", "--format=tar", commit, "rq_core", "sql_audit", "lua"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    subprocess.run([_path("tar"), "-x", "-C", str(place)], input=archive.stdout, check=True)


def upgrade(fleet: Fleet, seconds: float) -> None:
    """Replace the processes of `old` by those of `new`, part by part, under load. Then return the workers to `old`.

    After each step, wait a fifth of ``seconds``, and until the workers and the mirror have made progress.
    """

    def load(*by: str) -> None:
        """Let the processes work until the workers of these commits have claimed more jobs, and the mirror has written
        more."""
        claims, mirrored = fleet.claims(), mirrored_jobs(fleet.audit)
        time.sleep(seconds / 5)
        for commit in by:
            fleet.until(
                f"workers of {commit} claim",
                lambda name=commit: fleet.claims()[name] >= claims[name] + 20,  # type: ignore[misc]
            )
        fleet.until("the mirror goes on", lambda: mirrored_jobs(fleet.audit) >= mirrored + 20)

    fleet.mirror("mirror", "old")
    for name in ("worker-1", "worker-2"):
        fleet.worker(name, "old")
    fleet.producer("producer-1", "old")
    load("old")
    fleet.stop("mirror")
    fleet.mirror("mirror", "new")
    load("old")
    fleet.worker("worker-3", "new")
    fleet.stop("worker-1", by=signal.SIGKILL)
    load("old", "new")
    fleet.producer("producer-2", "new")
    load("old", "new")
    fleet.stop("worker-2")
    fleet.worker("worker-4", "new")
    fleet.stop("worker-3", by=signal.SIGKILL)
    fleet.stop("producer-1")
    load("new")
    # Back: the release before, for the workers only.
    fleet.worker("worker-5", "old")
    fleet.stop("worker-4")
    load("old")
    fleet.stop("producer-2")
    fleet.worker("worker-6", "new")


def mirrored_jobs(audit: Path) -> int:
    """Return the number of jobs in the audit database; 0 while it has no tables."""
    if not audit.exists():
        return 0
    connection = sqlite3.connect(f"file:{audit}?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM job").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def states(audit: Path, ids: Sequence[str]) -> dict[str, str]:
    """Return the states of jobs in the audit database, by id."""
    connection = sqlite3.connect(f"file:{audit}?mode=ro", uri=True)
    try:
        rows = connection.execute("SELECT job_id, state FROM job").fetchall()
    finally:
        connection.close()
    wanted = set(ids)
    return {job_id: state for job_id, state in rows if job_id in wanted}


def refusals(fleet: Fleet) -> dict[str, str]:
    """Run programs with another layout, and commands on another schema. All must be refused. Return case → error
    message."""
    shutil.copytree(fleet.directory / "new", fleet.directory / "future")
    machine = fleet.directory / "future" / "rq_core" / "model" / "table" / "machine.py"
    text, changed = re.subn(r"LAYOUT: Final = \d+", "LAYOUT: Final = 999", machine.read_text())
    assert changed == 1
    machine.write_text(text)
    produce = "import fleet; fleet.work.enqueue(1, 't')"
    found = {
        "a producer with another layout": fleet.command("future", "-c", produce),
        "a worker with another layout": fleet.command(
            "future", "-m", "rq_core.cli", "worker", "fleet", "--queues", QUEUE, "--burst"
        ),
    }
    shutil.copy(fleet.audit, fleet.directory / "later.db")
    with sqlite3.connect(fleet.directory / "later.db") as connection:
        connection.execute("UPDATE audit_schema_version SET version_num = '9999'")
    connection.close()
    for what, words in (("verify", ("verify",)), ("a mirror", ("run", "--once"))):
        at = ("--audit", str(fleet.directory / "later.db"))
        found[f"{what} on another schema"] = fleet.command(
            "new", "-m", "rq_core.cli", "audit", *words, *at
        )
    said = {}
    for what, done in found.items():
        printed = (done.stdout + done.stderr).strip().splitlines() or [""]
        said[what] = f"{done.returncode}: {printed[-1]}"
    return said


NEEDED: Final[Mapping[str, str]] = {
    "a producer with another layout": r"[1-9]\d*: .*needs layout 999",
    "a worker with another layout": r"[1-9]\d*: .*needs layout 999",
    "verify on another schema": r"[1-9]\d*: .*has schema 9999",
    "a mirror on another schema": r"[1-9]\d*: .*has schema 9999",
}
"""The exit status and the words that each refused program must print."""


def rehearse(old: str, new: str, seconds: float, say: Callable[[str], None]) -> bool:
    """Rehearse the upgrade from one commit to another. Return whether no job was lost, and each refusal had its
    message.
    """
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        for name, commit in (("old", old), ("new", new)):
            check_out(commit, directory / name)
        (directory / "fleet.py").write_text(_FLEET)
        server = RedisServer(engines()[0], directory, {"appendonly": "yes"})
        server.start()
        fleet = Fleet(directory, server.url)
        try:
            return _judged(fleet, seconds, say)
        finally:
            fleet.close()
            server.stop()


def _judged(fleet: Fleet, seconds: float, say: Callable[[str], None]) -> bool:
    upgrade(fleet, seconds)
    ids = [job_id for line in fleet.lines("accepted") for job_id in line.split()]

    def all_ended() -> bool:
        found = states(fleet.audit, ids)
        return len(found) == len(ids) and not set(found.values()) - {"succeeded", "dead"}

    fleet.until("all jobs end", all_ended)
    ended = Counter(states(fleet.audit, ids).values())
    by_fleet = fleet.claims()
    seen = {line.split()[0] for line in (fleet.directory / "witness").read_text().splitlines()}
    refused = Counter(line.split()[0] for line in fleet.lines("refused"))
    verified = fleet.command(
        "new", "-m", "rq_core.cli", "audit", "verify", "--redis", fleet.redis_url
    )
    said = refusals(fleet)
    lines = {
        "acknowledged": len(ids),
        "ended": dict(ended),
        "not run": len(set(ids) - seen),
        "claims by fleet": dict(by_fleet),
        "calls refused": dict(refused),
        "verify": verified.stdout.splitlines()[-1:],
        "refusals": said,
    }
    say(json.dumps(lines, indent=1))
    mute = [what for what, words in NEEDED.items() if not re.match(words, said[what])]
    if verified.returncode:
        say(verified.stdout + verified.stderr)
    return (
        bool(ids)
        and ended == {"succeeded": len(ids)}
        and set(ids) <= seen
        and set(by_fleet) == {"old", "new"}
        and not refused
        and not mute
        and verified.returncode == 0
    )


def main(arguments: Sequence[str]) -> int:
    """Rehearse an upgrade. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", help="the commit of the fleet that is replaced")
    parser.add_argument("new", nargs="?", default="HEAD", help="the commit of the new fleet")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load lasts")
    given = parser.parse_args(arguments)
    holds = rehearse(given.old, given.new, given.seconds, print)
    print("nothing was lost" if holds else "FAILED")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
