"""Many transactions insert rows while relays are killed. Each committed row must become one job.

Some transactions and savepoints are rolled back. The proof compares four records: orders in the database, runs in the
witness file, ``enqueued`` events in the log, and the counts of the inbox.

One process inserts rows, one runs the jobs, one is the mirror, and two are relays. All are forked, so that a new relay
need not start Python again.
"""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from sqlalchemy import create_engine, text

from rq_core import App
from sql_audit.inbox import sending
from sql_audit.inbox.database import inbox_engine, inbox_url
from sql_audit.inbox.service import RelayService
from sql_audit.inbox.verify import compare_with_log
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.kit.inbox import QUEUE, Stage
from tests.rigs.inbox import usual

STEPS: Final = ("commit", "committed", "send", "answered")
USUAL_STEPS: Final = ("send", "answered")
RELAYS: Final = 2
OF_STEPS: Final = 0.7
"""The share of the relays that are killed at a step of their turn. The other relays are killed at any moment."""
LIFE_S: Final = (0.05, 0.5)
"""The shortest and the longest time (s) from the first step of a relay to its kill at any moment. Before its first
step, a relay has changed no row."""
START_S: Final = 20.0
"""The longest wait (s) for a relay's first step. If there are no rows, a relay makes no step."""
STEP_S: Final = 5.0
"""The longest time (s) from the first step of a relay to the step at which it dies."""
AT_EACH_STEP: Final = 20
"""For this number of killed relays, each step must have at least one kill: of 100 kills, each step must have 5."""
PACE_S: Final = 0.25
"""The time (s) for which rows are inserted, per kill of a relay. It is chosen so that relays always have rows."""
SLOW_S: Final = 0.1
"""The seconds between two transactions while the transactions are ahead of the kills of relays."""
AGED_S: Final = 0.5
"""The seconds between two times at which the rig makes the batches of killed relays older, so that other relays send
these batches at once."""
END_S: Final = 120.0
CALL_ROWS: Final = 10
"""The number of rows in a call. It is small here, so that most batches need several calls."""


@dataclass
class Outcome:
    """The result of one run: how many rows were committed, and what became of their jobs."""

    database: str
    transactions: int
    kills: int
    committed: int = 0
    rolled_back: int = 0
    """The number of transactions and savepoints that were rolled back."""
    ran: int = 0
    twice: int = 0
    """The number of jobs that ran more than once."""
    lost: int = 0
    """The number of committed rows whose jobs never ran."""
    unexpected: int = 0
    """The number of jobs that ran although their row was never committed."""
    logged: int = 0
    counted: int = 0
    """The number of rows that the inbox counted as handed over."""
    killed_at: dict[str, int] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    """The findings of ``inbox verify``."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Return whether each committed row became one job, all records agree, and enough relays were killed at each
        step."""
        wrong = self.twice or self.lost or self.unexpected or self.findings
        is_spread = all(self.killed_at.get(s, 0) >= self.kills // AT_EACH_STEP for s in STEPS)
        agree = self.committed == self.ran == self.logged == self.counted
        return not wrong and agree and is_spread

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


class _Killed(NamedTuple):
    """A running relay process that the rig will kill."""

    child: int
    """The id of its process."""
    dies_at: tuple[str, int] | None
    """The step at which the relay kills itself, and the count of that step; None: the rig kills it at any moment."""
    began: int
    """A pipe that is closed at the relay's first step."""


class Rig:
    """One run of the proof. It writes its files into the directory ``place``."""

    def __init__(
        self, database_url: str, redis_url: str, place: Path, *, seed: int, is_usual: bool = False
    ) -> None:
        self.database_url, self.redis_url, self.place = database_url, redis_url, place
        self.audit_url = str(place / "audit.db")
        self.random = random.Random(seed)
        self.is_usual = is_usual
        self._children: set[int] = set()
        # Shared with the process that inserts rows.
        self._killed = mmap.mmap(-1, 4)
        stage = Stage(database_url, redis_url)
        with stage.session.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (job_id text)")
        if stage.session.engine.dialect.name == "sqlite":
            # As an application with several processes has it.
            with stage.session.engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                driver.execute("PRAGMA journal_mode = WAL")
        stage.close()

    def run(self, transactions: int, kills: int) -> Outcome:
        """Insert rows and kill relays at the same time. Then let all jobs end, and compare the records."""
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sending, "CALL_ROWS", CALL_ROWS)
            return self._run(transactions, kills)

    def _run(self, transactions: int, kills: int) -> Outcome:
        began = time.monotonic()
        outcome = Outcome(self.database_url.partition(":")[0], transactions, kills)
        stop = self.place / "stop"
        mirror = self._fork(lambda: self._mirror(stop))
        runner = self._fork(lambda: self._run_jobs(stop))
        producer = self._fork(lambda: self._insert(transactions, kills))
        try:
            outcome.killed_at = dict(self._kill(kills))
            self._join(producer)
            self._settle()
            stop.touch()
            self._join(runner)
            self._join(mirror)
        finally:
            for child in self._children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        self._judge(outcome)
        outcome.seconds = round(time.monotonic() - began, 1)
        return outcome

    # Processes.

    def _fork(self, work: Callable[[], None]) -> int:
        child = os.fork()
        if child == 0:
            self._children.clear()
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        self._children.add(child)
        return child

    def _join(self, child: int) -> None:
        _, status = os.waitpid(child, 0)
        self._children.discard(child)
        assert status == 0, "a process of the rig failed"

    def _insert(self, transactions: int, kills: int) -> None:
        """Make transactions as a user's program does, each with one to three jobs.

        One of ten transactions is rolled back, and one of five has a savepoint that is rolled back. While the
        transactions are ahead of the kills, they come more slowly, so that the kills catch up.
        """
        chance = self.random
        pace_s = kills * PACE_S / transactions
        engine = inbox_engine(inbox_url(self.database_url))
        app = App(self.redis_url)

        @app.task(queue=QUEUE)
        def send(order: int) -> None: ...

        noted = text("INSERT INTO orders VALUES (:job)")
        rolled_back = 0
        with engine.connect() as connection:
            for number in range(transactions):
                killed = int.from_bytes(self._killed[:])
                time.sleep(pace_s if number * kills < (killed + 1) * transactions else SLOW_S)
                with connection.begin() as transaction:
                    for _ in range(chance.randint(1, 3)):
                        job = send.within(connection).enqueue(number)
                        connection.execute(noted, {"job": job.id})
                    if chance.random() < 0.2:
                        savepoint = connection.begin_nested()
                        job = send.within(connection).enqueue(-number)
                        connection.execute(noted, {"job": job.id})
                        savepoint.rollback()
                        rolled_back += 1
                    if chance.random() < 0.1:
                        transaction.rollback()
                        rolled_back += 1
        (self.place / "rolled_back").write_text(str(rolled_back))

    def _run_jobs(self, stop: Path) -> None:
        """Run each job as soon as it is in Redis, and write its id into the witness file.

        A live job would refuse a second job with its id, and so hide an error.
        """
        stage = Stage(self.database_url, self.redis_url)
        with (self.place / "witness").open("a") as witness:
            while True:
                is_last = stop.exists()
                for job in (ran := stage.drain()):
                    witness.write(f"{job}\n")
                if is_last and not ran:
                    return
                if not ran:
                    time.sleep(0.01)

    def _mirror(self, stop: Path) -> None:
        event = threading.Event()

        def wait() -> None:
            while not stop.exists():
                time.sleep(0.1)
            event.set()

        threading.Thread(target=wait, daemon=True).start()
        source = open_source(self.redis_url, "rqc")
        run_mirror(source, self.audit_url, stop=event)

    def _relay(self, dies_at: tuple[str, int] | None, began: int) -> None:
        """Run a relay in this process. At its first step the relay closes the file descriptor ``began``."""
        seen: Counter[str] = Counter()

        def on_step(step: str) -> None:
            if not seen:
                os.close(began)
            seen[step] += 1
            if (step, seen[step]) == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)

        stage = Stage(self.database_url, self.redis_url)
        if self.is_usual:
            while True:
                if not usual.hand_over(stage, on_step):
                    time.sleep(0.01)
        with stage.relay(on_step) as made:
            service = RelayService(made._session, made._client, made)
            while True:
                if not service.round():
                    time.sleep(0.01)

    def _kill(self, kills: int) -> Counter[str]:
        """Keep two relays running, and kill one after another: at a chosen step, or at a random moment.

        Return how many relays died at each step.
        """
        killed_at: Counter[str] = Counter()
        stage = Stage(self.database_url, self.redis_url)
        alive: list[_Killed] = []
        for number in range(kills):
            self._killed[:] = number.to_bytes(4)
            while len(alive) < RELAYS:
                alive.append(self._start())
            relay = alive.pop(0)
            killed_at[self._die(relay, stage)] += 1
            self._children.discard(relay.child)
            os.close(relay.began)
        for relay in alive:
            os.kill(relay.child, signal.SIGKILL)
            os.waitpid(relay.child, 0)
            self._children.discard(relay.child)
            os.close(relay.began)
        # The process that inserts rows must wait for no further kill.
        self._killed[:] = b"\xff" * 4
        stage.close()
        return killed_at

    def _start(self) -> _Killed:
        steps = USUAL_STEPS if self.is_usual else STEPS
        step = (self.random.choice(steps), self.random.randint(1, 3))
        dies_at = step if self.random.random() < OF_STEPS else None
        began, begins = os.pipe()
        child = self._fork(partial(self._relay, dies_at, begins))
        os.close(begins)
        return _Killed(child, dies_at, began)

    def _die(self, relay: _Killed, stage: Stage) -> str:
        """Wait until the relay has killed itself, or kill it after a while. Return the step or the moment at which it
        died."""
        aged_at = began_at = 0.0
        life_s = STEP_S if relay.dies_at else self.random.uniform(*LIFE_S)
        until = time.monotonic() + START_S
        while True:
            now = time.monotonic()
            if now - aged_at >= AGED_S:
                # A batch of a killed relay need not wait for 5 s: to send it early is harmless.
                stage.age_batches()
                aged_at = now
            child, status = os.waitpid(relay.child, os.WNOHANG)
            if child:
                assert os.WIFSIGNALED(status), "a relay failed"
                assert relay.dies_at, "a relay was killed by another process"
                return relay.dies_at[0]
            if not began_at and select.select([relay.began], [], [], 0)[0]:
                began_at = now
                until = now + life_s
            if now > until:
                os.kill(relay.child, signal.SIGKILL)
                os.waitpid(relay.child, 0)
                return "any moment" if began_at else "before the first step"
            time.sleep(0.002)

    def _settle(self) -> None:
        """Let a relay hand over the remaining rows."""
        stage = Stage(self.database_url, self.redis_url)
        until = time.monotonic() + END_S
        while stage.rows():
            assert time.monotonic() < until, "rows are left"
            stage.age_batches()
            if self.is_usual:
                usual.hand_over(stage, lambda _: None)
            else:
                stage.hand_over()
        stage.close()

    # The judge.

    def _judge(self, outcome: Outcome) -> None:
        stage = Stage(self.database_url, self.redis_url)
        committed = {job for (job,) in stage.sql("SELECT job_id FROM orders")}
        ran = Counter((self.place / "witness").read_text().split())
        outcome.rolled_back = int((self.place / "rolled_back").read_text())
        outcome.committed = len(committed)
        outcome.ran = ran.total()
        outcome.twice = sum(1 for times in ran.values() if times > 1)
        outcome.lost = len(committed - ran.keys())
        outcome.unexpected = len(ran.keys() - committed)
        logged = "SELECT count(*), count(DISTINCT job_id) FROM job_event WHERE type = 'enqueued'"
        log = create_engine(f"sqlite:///{self.audit_url}")
        with log.connect() as connection:
            events, jobs = connection.execute(text(logged)).one()
        outcome.logged = events
        if not self.is_usual:
            assert jobs == events or outcome.twice
            outcome.counted = stage.relay_row().relayed
            database = Database(self.audit_url)
            outcome.findings = [
                each.finding
                for each in compare_with_log(stage.session, database.readers)
                if each.finding
            ]
            database.close()
        log.dispose()
        stage.close()
