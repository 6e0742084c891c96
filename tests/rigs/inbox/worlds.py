"""Worlds of an inbox: several relays make their steps in a random order, with commits, kills and losses in between.

A seed determines the order, and gives the same world each time. Each relay has a thread. Only one relay's thread runs
at a time, up to that relay's next step outside a transaction. A kill is an exception at a step, after which the relay's
memory is gone. In some worlds Redis is flushed, or the database is set back to an older state.

The judge knows which jobs Redis had before each loss. Without a loss, each committed row becomes one job. A flush may
take only jobs that Redis had acknowledged. A job whose row has left the inbox never comes back. If the database is set
back, an old row becomes a job again, or is refused as the duplicate of a live job.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import pytest

from rq_core.errors import RqCoreError
from sql_audit.inbox import sending
from sql_audit.inbox.relay import Relay
from sql_audit.inbox.session import RelayRow
from tests.kit.inbox import QUEUE, Stage

CALL_ROWS: Final = 2
"""The number of rows in a call, so that a batch of a few rows has several calls."""
RELAYS: Final = 3
ACTIONS: Final = 60
"""The number of random actions in a world."""
AGE_S: Final = 10


class Kind(StrEnum):
    """The kinds of faults that happen in a world."""

    KILLS = "kills"
    """Only relays are killed."""
    FLUSHES = "flushes"
    SET_BACKS = "set backs"


class _Killed(BaseException):
    """Raised inside a relay to kill it."""


class PausedRelay:
    """A relay in a thread of its own. It waits before each turn, and at each step outside a transaction."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._goes, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self._dies_at = ""
        self._ended = False
        self.at = ""
        """The step at which the relay waits; empty: before a turn."""
        self.sends: set[str] = set()
        """The jobs that the relay may still send, whatever other relays do meanwhile."""
        self.relay: Relay | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._waits.acquire()

    def step(self) -> None:
        """Let the relay continue until it waits again."""
        self._goes.release()
        self._waits.acquire()
        if self.failure is not None:
            raise self.failure

    def kill(self, *, within: bool) -> None:
        """Kill the relay where it waits or, with ``within``, inside its next transaction, just before the COMMIT."""
        self._dies_at = "commit" if within else "now"
        while not self._ended:
            self._goes.release()
            self._waits.acquire()
        self._thread.join()

    def has_answer(self, slot: str, number: int) -> bool:
        """Return whether the relay has received Redis' whole answer to the batch with this slot and number."""
        assert self.relay is not None
        queue = self.relay._queues.get(QUEUE)
        return queue is not None and queue.answer is not None and queue.answer.of == (slot, number)

    def _run(self) -> None:
        try:
            with self._stage.relay(self._on_step) as self.relay:
                while True:
                    self._wait()
                    # As in a service, the next turn tries again.
                    with contextlib.suppress(RqCoreError):
                        self.relay.turn(QUEUE)
        except _Killed:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self._ended = True
            self._waits.release()

    def _on_step(self, step: str) -> None:
        if step == "commit":
            if self._dies_at == "commit":
                raise _Killed
        else:
            self._wait(step)

    def _wait(self, step: str = "") -> None:
        self.at = step
        self._waits.release()
        self._goes.acquire()
        if self._dies_at == "now":
            raise _Killed


@dataclass
class Outcome:
    """The result of one world: its actions and jobs, and the errors that the judge found."""

    kind: Kind
    seed: int
    actions: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    """The number of enqueues. A job that was enqueued again counts again."""
    again: int = 0
    """The number of jobs that were enqueued again after a loss."""
    wrong: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.wrong

    def document(self) -> dict[str, Any]:
        return {**vars(self), "actions": dict(self.actions), "holds": self.holds}


class World:
    """One random history of relays. It begins with an empty inbox and an empty Redis."""

    def __init__(self, stage: Stage, kind: Kind, seed: int) -> None:
        self._stage = stage
        self._random = random.Random(seed)
        self._outcome = Outcome(kind, seed)
        self._relays: list[PausedRelay] = []
        self._histories: list[Counter[str]] = []
        """The jobs that were enqueued in each of Redis' histories that has ended."""
        self._due: list[set[str]] = []
        """At the end of each history, the rows that must become jobs in a later history."""
        self._gone: list[set[str]] = []
        """At the end of each history, the rows that have left the inbox and that no relay may send again."""
        self._committed: set[str] = set()
        self._undone: set[str] = set()
        """The rows that were committed after the state to which the database was set back."""
        self._set_back: tuple[Callable[[], None], set[str]] | None = None
        self._backs = 0

    def run(self) -> Outcome:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(sending, "CALL_ROWS", CALL_ROWS)
            self._relays = [PausedRelay(self._stage) for _ in range(RELAYS)]
            try:
                for _ in range(ACTIONS):
                    self._act()
            finally:
                for relay in self._relays:
                    relay.kill(within=False)
            self._stage.age_batches(AGE_S)
            self._stage.hand_over()
        self._judge()
        return self._outcome

    def _act(self) -> None:
        chances: dict[Callable[[], None], float] = {
            self._step: 12, self._commit: 3, self._roll_back: 0.5, self._kill: 1, self._age: 1.5, self._drain: 1.5,
        }  # fmt: skip
        if self._outcome.kind is Kind.FLUSHES:
            chances[self._flush] = 0.7
        if self._outcome.kind is Kind.SET_BACKS:
            chances[self._save if self._set_back is None else self._restore] = 0.7
        (does,) = self._random.choices(list(chances), list(chances.values()))
        self._outcome.actions[does.__name__.strip("_")] += 1
        does()

    def _step(self) -> None:
        relay = self._random.choice(self._relays)
        relay.step()
        if relay.at == "committed":
            relay.sends = self._batch()
        elif relay.at != "send":
            relay.sends = set()

    def _commit(self) -> None:
        first = len(self._committed)
        jobs = [f"j-{n}" for n in range(first, first + self._random.randint(1, 4))]
        self._stage.insert(*jobs)
        self._committed.update(jobs)

    def _roll_back(self) -> None:
        with contextlib.suppress(ZeroDivisionError), self._stage.session.transaction() as made:
            statement = "INSERT INTO rqc_inbox (queue, task, job_id) VALUES (?, 't', 'no')"
            made.run(self._stage.session.text(statement), QUEUE)
            raise ZeroDivisionError

    def _kill(self) -> None:
        at = self._random.randrange(RELAYS)
        self._relays[at].kill(within=self._random.random() < 0.5)
        self._relays[at] = PausedRelay(self._stage)

    def _age(self) -> None:
        self._stage.age_batches(AGE_S)

    def _drain(self) -> None:
        self._stage.drain()

    def _flush(self) -> None:
        rows = set(self._stage.rows())
        # A relay that waits before its call will send rows that another relay has handed over and deleted.
        sends = set[str]().union(*[relay.sends for relay in self._relays])
        self._end_history(rows - self._answered(), self._committed - rows - sends)
        self._stage.client.run(self._stage.client.calls.delivery.ask([["FLUSHALL"]]))

    def _end_history(self, due: set[str], gone: set[str]) -> None:
        self._histories.append(self._stage.enqueued())
        self._due.append(due)
        self._gone.append(gone)

    def _answered(self) -> set[str]:
        """Return the jobs of the current batch if a relay has Redis' whole answer to it, otherwise no jobs."""
        row = self._row()
        if row is None or not any(
            each.has_answer(row.slot or "", row.number or 0) for each in self._relays
        ):
            return set()
        return self._batch()

    def _batch(self) -> set[str]:
        """Return the jobs of the batch that is being sent to the queue."""
        row = self._row()
        ids = row.ids or [] if row is not None else []
        found = self._stage.sql("SELECT id, job_id FROM rqc_inbox WHERE queue = ?", QUEUE)
        return {job for each, job in found if each in ids}

    def _row(self) -> RelayRow | None:
        with self._stage.session.transaction() as transaction:
            return transaction.look(QUEUE)

    def _save(self) -> None:
        self._set_back = self._stage.saved(), set(self._committed)

    def _restore(self) -> None:
        assert self._set_back is not None
        restore, had = self._set_back
        restore()
        self._undone |= self._committed - had
        self._set_back = None
        self._backs += 1

    def _judge(self) -> None:
        outcome, stage = self._outcome, self._stage
        last = stage.enqueued()
        histories = [*self._histories, last]
        total: Counter[str] = sum(histories, Counter())
        outcome.jobs = total.total()
        outcome.again = sum(1 for times in total.values() if times > 1)
        wrong = outcome.wrong
        if left := stage.rows():
            wrong.append(f"rows are left: {left}")
        if parked := stage.parked():
            wrong.append(f"rows are parked: {parked}")
        if unexpected := total.keys() - self._committed:
            wrong.append(f"jobs without a committed row: {sorted(unexpected)}")
        if lost := self._committed - self._undone - total.keys():
            wrong.append(f"lost: {sorted(lost)}")
        most = 1 + self._backs
        for history in histories:
            if twice := [job for job, times in history.items() if times > most]:
                wrong.append(f"enqueued more than {most} times in one history: {sorted(twice)}")
        for at, (due, gone) in enumerate(zip(self._due, self._gone, strict=True)):
            later: Counter[str] = sum(histories[at + 1 :], Counter())
            if missing := due - later.keys():
                wrong.append(f"lost by flush {at + 1}: {sorted(missing)}")
            if back := gone & later.keys():
                wrong.append(f"back after flush {at + 1}: {sorted(back)}")
        row = self._row()
        counts = (row.relayed, row.held, row.duplicate) if row is not None else (0, 0, 0)
        if outcome.kind is Kind.KILLS and counts != (len(self._committed), 0, 0):
            wrong.append(f"counted {counts}")


def clear(stage: Stage) -> None:
    """Empty the inbox and Redis."""
    for table in ("rqc_inbox", "rqc_inbox_parked", "rqc_relay"):
        stage.sql(f"DELETE FROM {table}")
    stage.client.run(stage.client.calls.delivery.ask([["FLUSHALL"]]))


def run_world(stage: Stage, kind: Kind, seed: int) -> Outcome:
    """Empty the stage, and run one world on it."""
    clear(stage)
    # A new row of the relay, so that the counts are of this world.
    stage.hand_over()
    return World(stage, kind, seed).run()
