"""Exactly once: a mirror that is killed between any two of its steps omits no event, and writes no event twice."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import STEPS, Mirror, TurnOutcome
from sql_audit.store.connection.database import Database
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue

ROOT = Path(__file__).parents[2]


def run_child(valkey_url: str, audit_url: str, step: str, occurrence: int) -> int:
    child = [
        sys.executable, "-m", "tests.kit.mirror_child",
        valkey_url, audit_url, QUEUE, step, str(occurrence),
    ]  # fmt: skip
    return subprocess.run(child, cwd=ROOT, check=False, timeout=60).returncode


@pytest.mark.parametrize("step", STEPS)
def test_a_mirror_killed_between_two_steps_loses_and_duplicates_no_event(
    step: str,
    valkey_url: str,
    audit_url: str,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    database: Database,
) -> None:
    for n in range(4):
        writer.life(f"{n}-a", f"{n}-b")
    writer.raw({"type": "nonsense", "by": "x"})
    occurrence = 1 if step == "attached" else 2

    killed = run_child(valkey_url, audit_url, step, occurrence)
    enqueue(writer, "after")
    auditlog.drain(make_mirror(limits=BatchLimits(events=7)))

    assert killed == -signal.SIGKILL
    log = [(at, raw) for at, raw in writer.log if raw["type"] != b"nonsense"]
    told = auditlog.events(database, QUEUE)
    assert [(e["epoch"], e["seq"]) for e in told if e["ordinal"] == 0] == [
        (writer.epoch, n) for n in range(len(writer.log))
    ]
    with_nonsense = [e for e in told if e["type"] == "quarantined"]
    assert [e["seq"] for e in with_nonsense] == [13]
    assert len(told) == 1 + len(auditlog.told_by_stream(log))
    assert len(auditlog.rows(database, "SELECT * FROM quarantine")) == 1
    states = auditlog.rows(
        database, "SELECT state, COUNT(*) AS n FROM job GROUP BY state ORDER BY 1"
    )
    assert states == [{"state": "ready", "n": 1}, {"state": "succeeded", "n": 8}]
    outcomes = auditlog.rows(database, "SELECT outcome, ran_ms FROM job_attempt")
    assert outcomes == [{"outcome": "succeeded", "ran_ms": 1}] * 8
    assert writer.backlog() == (0, 0)
    auditlog.assert_chain_holds(database, QUEUE)


@pytest.mark.slow
def test_mirrors_that_are_killed_repeatedly_complete_the_log(
    valkey_url: str,
    audit_url: str,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    database: Database,
) -> None:
    """Checks one mirror after another. Each mirror is killed at another step, and together they write the
    complete log."""
    for n in range(20):
        writer.life(f"{n}-a", f"{n}-b", f"{n}-c")

    killed = [run_child(valkey_url, audit_url, step, 2) for step in STEPS[1:]]
    auditlog.drain(make_mirror())

    assert set(killed) == {-signal.SIGKILL}
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    assert writer.backlog() == (0, 0)
    auditlog.assert_chain_holds(database, QUEUE)


@pytest.mark.slow
def test_two_concurrent_mirrors_write_each_event_once(
    valkey_url: str, audit_url: str, writer: StreamWriter, database: Database
) -> None:
    writers_done = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        source, mine = StreamSource(valkey_url), Database(audit_url)
        try:
            mirror = Mirror(source, mine, QUEUE, limits=BatchLimits(events=15))
            done = idle = False
            while not (done and idle):
                # Asked before the turn: one that finds nothing may have looked before the last entry was written.
                done = writers_done.is_set()
                idle = mirror.turn().outcome is TurnOutcome.IDLE
        except BaseException as error:
            failures.append(error)
            raise
        finally:
            source.close()
            mine.close()

    mirrors = [threading.Thread(target=work) for _ in range(3)]
    for thread in mirrors:
        thread.start()
    for n in range(150):
        writer.life(f"{n}-a", f"{n}-b")
    writers_done.set()
    for thread in mirrors:
        thread.join()

    assert failures == []
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    assert writer.backlog() == (0, 0)
    auditlog.assert_chain_holds(database, QUEUE)
