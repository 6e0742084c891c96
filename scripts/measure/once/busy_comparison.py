"""Runs `audit verify --redis` and `doctor --audit` repeatedly while a queue is busy, on both databases.

    scripts/measure/once/run busy-comparison --rounds 200 --jobs 3000

It starts a server, and keeps thousands of jobs waiting in it while other jobs begin and end. The mirror copies their
events, and both commands run all the time. Neither command may report a difference. At the end, some jobs are deleted
from Redis without a script, and both commands must report this.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from click.testing import CliRunner, Result

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, Profile
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.processes import python
from tests.kit.servers import PostgresServer, RedisServer, engines
from tests.kit.wait import wait_until

QUEUE = "mail"
CHUNK = 20
PAUSE_S = 0.03
"""The default pause (s) of the client before it enqueues, claims and completes jobs again. It is long, because verify
reads the whole log each time: with a faster client, the last of many rounds would take minutes."""
TAKEN = 20
"""The number of jobs that are deleted from Redis at the end."""
ids = JobIds()


def enqueue(client: Client, count: int) -> None:
    for _ in range(0, count, CHUNK):
        jobs = [NewJob(ids(), QUEUE, Profile("send"), "{}") for _ in range(CHUNK)]
        client.run(client.calls.enqueue.many(jobs))


@contextlib.contextmanager
def busy(redis_url: str, jobs: int, pause_s: float = PAUSE_S) -> Iterator[None]:
    """Keep ``jobs`` jobs waiting during the block, while other jobs run and end."""
    stop = threading.Event()
    with Client(redis_url) as client:
        enqueue(client, jobs)

        def work() -> None:
            while not stop.wait(pause_s):
                enqueue(client, CHUNK)
                claimed = client.run(claims.claim(QUEUE, "w-1", CHUNK)).jobs
                ended = [(claim.id, claim.fence) for claim in claimed]
                client.run(claims.complete(QUEUE, "w-1", ended))

        thread = threading.Thread(target=work, name="busy")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def ask(redis_url: str, audit_url: str) -> tuple[Result, Result]:
    servers = ["--redis", redis_url, "--audit", audit_url]
    runner = CliRunner()
    return (
        runner.invoke(root, ["audit", "verify", *servers]),
        runner.invoke(root, ["doctor", QUEUE, *servers]),
    )


def run(
    redis_url: str,
    audit_url: str,
    directory: Path,
    *,
    rounds: int,
    jobs: int,
    pause_s: float = PAUSE_S,
) -> list[str]:
    """Run the comparison. Print how often each command ended with each exit status, and return the problems."""
    migrate.upgrade_schema(audit_url)
    words = ("tests.kit.mirror_service", redis_url, audit_url)
    said: Counter[tuple[str, int]] = Counter()
    wrong: list[str] = []
    with busy(redis_url, jobs, pause_s), python(*words, log=directory / "mirror.log") as mirror:
        database = Database(audit_url)
        cursor = "SELECT epoch FROM mirror_cursor WHERE epoch IS NOT NULL"
        wait_until(lambda: auditlog.rows(database, cursor), "the first batch")
        database.close()
        begun = time.monotonic()
        for _ in range(rounds):
            for name, result in zip(("verify", "doctor"), ask(redis_url, audit_url), strict=True):
                said[name, result.exit_code] += 1
                if result.exit_code != 0:
                    wrong.append(f"{name}: {result.output[-600:]}")
        took = time.monotonic() - begun
        with Client(redis_url) as client:
            keys = queue_keys(QUEUE)
            (page,) = client.run(client.calls.delivery.ask([["HRANDFIELD", keys("jobs"), TAKEN]]))
            taken = [["HDEL", keys(name), *page] for name in ("state", "jobs")]
            client.run(client.calls.delivery.ask(taken))
        for name, result in zip(("verify", "doctor"), ask(redis_url, audit_url), strict=True):
            if result.exit_code != 1:
                wrong.append(
                    f"{name} does not see the jobs that were taken: {result.output[-600:]}"
                )
        mirror.terminate()
        mirror.finish(60)
    sys.stdout.write(f"{rounds} rounds in {took:.0f} s: {dict(said)}\n")
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=3000)
    parser.add_argument("--pause", type=float, default=PAUSE_S, metavar="SECONDS")
    options = parser.parse_args(arguments)
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rqc-") as name, contextlib.ExitStack() as stack:
        postgres = PostgresServer().start()
        stack.callback(postgres.stop)
        urls = (str(Path(name) / "audit.db"), postgres.url(postgres.create_database()))
        for number, url in enumerate(urls):
            directory = Path(name) / str(number)
            directory.mkdir()
            server = RedisServer(engines()[0], directory).start()
            try:
                wrong += run(
                    server.url,
                    url,
                    directory,
                    rounds=options.rounds // 2,
                    jobs=options.jobs,
                    pause_s=options.pause,
                )
            finally:
                server.stop()
    sys.stdout.writelines(f"{each}\n" for each in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
