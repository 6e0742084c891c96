"""Two mirrors in two processes. The first mirror is suspended within a transaction."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.processes import Child, mirror
from tests.kit.schemas import lay_schema
from tests.kit.wait import wait_until

TAKEOVER_MS = 1_500
"""The timeout (ms) of a transaction. By default it is half a minute for an idle transaction and a minute for a
transaction within a COPY."""

Start = Callable[..., Child]


@pytest.fixture
def start(valkey_url: str, tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts the mirror's service on a database. Services that still run are killed after the
    test.
    """
    with contextlib.ExitStack() as stack:

        def start(database: Database, *rest: str) -> Child:
            url = database.address.render_as_string(hide_password=False)
            log = tmp_path / f"mirror-{len(list(tmp_path.glob('mirror-*')))}"
            return stack.enter_context(mirror(valkey_url, url, *rest, log=log))

        yield start


def stopped_mirror(
    client: Client, database: Database, fleet: Fleet, start: Start, step: str
) -> Child:
    """Start a mirror that suspends itself at this step, and let the fleet's workers continue afterwards."""
    lay_schema(database)
    fleet.run(20)
    stopped = start(database, step, str(TAKEOVER_MS))
    wait_until(
        lambda: client.run(client.calls.reads.counts(QUEUE)).audit, "it has attached", timeout=30
    )
    wait_until(lambda: fleet.run(1) or stopped.is_stopped, "it has stopped", timeout=30)
    fleet.run(40)
    return stopped


def level(client: Client) -> bool:
    return client.run(client.calls.reads.counts(QUEUE)).backlog == 0


def assert_whole(client: Client, database: Database) -> None:
    """Assert that the log has no gap, no event twice, and a valid chain."""
    kinds = auditlog.rows(database, "SELECT kind FROM mirror_epoch")
    assert {row["kind"] for row in kinds} == {"started"}
    assert verify(database).verdict is LogVerdict.HOLDS
    assert compare(client, database, QUEUE) == ([], [])
    auditlog.assert_chain_holds(database, QUEUE)


@pytest.mark.parametrize("step", ["copying", "advanced"])
@pytest.mark.slow
def test_another_mirror_takes_over_from_a_stopped_mirror(
    step: str, client: Client, postgres_url: str, start: Start
) -> None:
    """Checks a takeover within the timeout. When the first mirror resumes, it notices the takeover and does no
    damage."""
    database = Database(postgres_url)
    fleet = Fleet(client, 1)
    stopped = stopped_mirror(client, database, fleet, start, step)
    assert not level(client)
    other = start(database, "-", str(TAKEOVER_MS))
    other.wait_said("is mirrored into")  # it has started
    began = time.monotonic()

    wait_until(lambda: level(client), "the other takes over", timeout=40)
    took = time.monotonic() - began
    fleet.run(40)
    stopped.send_signal(signal.SIGCONT)
    fleet.run(40)
    # Both are mirrors now; whoever is left does all the work.
    wait_until(lambda: level(client), "they are level", timeout=30)
    told = other.end()
    fleet.run(40)
    wait_until(lambda: level(client), "the first goes on alone", timeout=30)
    regretted = stopped.end()

    assert took < TAKEOVER_MS / 1000 + 10
    assert ("stalled ones ended" in told) is (step == "copying")
    assert regretted.count("not mirrored:") == 1
    assert_whole(client, database)
    database.close()


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
@pytest.mark.slow
def test_another_mirror_on_sqlite_waits_until_the_stopped_mirror_resumes_or_dies(
    end: signal.Signals, client: Client, sqlite_url: str, start: Start
) -> None:
    """Checks the log message of the waiting mirror. The suspended process holds its lock on the file."""
    database = Database(sqlite_url)
    fleet = Fleet(client, 2)
    stopped = stopped_mirror(client, database, fleet, start, "projected")
    other = start(database, "-", str(TAKEOVER_MS))

    other.wait_said("is mirrored into")
    other.wait_said("held by another mirror; 0 stalled ones ended")
    assert not level(client)
    stopped.send_signal(end)
    wait_until(lambda: level(client), "the queue is mirrored again", timeout=30)
    other.end()

    assert_whole(client, database)
    database.close()
