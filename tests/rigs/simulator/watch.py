"""Follows the log of a simulation as it is written, and checks the promises after each entry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rq_core.connections.client import Client
from rq_core.model.events import Entry, JobRecord, OutboxId, decode, fold
from rq_core.model.table.machine import Event
from tests.kit.consistency import problems
from tests.kit.fleet import QUEUE
from tests.rigs.judge.boxes import Boxes
from tests.rigs.judge.caps import Proof
from tests.rigs.judge.schedules import Schedules
from tests.rigs.simulator.breakers import Guards
from tests.rigs.simulator.costs import Costs
from tests.rigs.simulator.results import Results

RawEntry = tuple[str, dict[str, str]]


class Violated(AssertionError):
    """Raised if a promise does not hold."""


class Watch:
    """The log of the queue, as Redis has it now. Entries that Redis has forgotten are in ``forgotten``."""

    def __init__(self, queue: str = QUEUE) -> None:
        self._queue = queue
        self.log: list[RawEntry] = []
        self.entries: list[Entry] = []
        self.records: dict[str, JobRecord] = {}
        self.forgotten: list[Entry] = []
        """The entries that Redis had once and no longer has."""
        self.results = Results()
        self.boxes = Boxes()
        self._proof = Proof()
        self._costs = Costs()
        self._guards = Guards()
        self._schedules = Schedules()

    @property
    def last(self) -> str:
        """Return the id of the last entry, or ``0-0`` without entries."""
        return self.log[-1][0] if self.log else "0-0"

    def add(self, found: list[Any]) -> list[Entry]:
        """Add new entries, in the form of XRANGE, and check them. Raises Violated."""
        added = []
        for entry_id, flat in found:
            raw = dict(zip(flat[::2], flat[1::2], strict=True))
            entry = decode(entry_id, raw)
            self._check_number(entry)
            self._apply(entry, check=True)
            self.log.append((entry_id, raw))
            self.entries.append(entry)
            added.append(entry)
        return added

    def _check_number(self, entry: Entry) -> None:
        """Check that the entry has the next number of its epoch (I5). Raises Violated."""
        begins = entry.event is Event.EPOCH_STARTED
        if not self.entries:
            fits = begins and entry.id.seq == 0
        else:
            epoch, seq = self.entries[-1].id
            goes_on = entry.id == (epoch, seq + 1) and not begins
            fits = goes_on or (begins and entry.id.epoch > epoch and entry.id.seq == 0)
        if not fits:
            raise Violated(f"I5: {entry.id} {entry.event} follows {self.last}")

    def _apply(self, entry: Entry, *, check: bool) -> None:
        """Apply the entry to the state of the jobs. With ``check``, raise Violated if it breaks a promise.

        The promises are those of jobs (I2, I4, I6, I9), caps and rates (I3), schedules (I15) and durable jobs (I20 to
        I23).
        """
        for event in entry.jobs:
            record, problem = fold(self.records.get(event.job_id), entry, event)
            self.records[event.job_id] = record
            if check and problem is not None:
                raise Violated(f"{entry.id} job {event.job_id}: {problem}")
        self.results.add(entry)
        unjustified = [*self._proof.add(entry), *self._costs.add(entry), *self._guards.add(entry)]
        if check and unjustified:
            raise Violated(f"I3: {'; '.join(unjustified)}")
        wrong = self._schedules.add(entry)
        if check and wrong:
            raise Violated(f"I15: {'; '.join(wrong)}")
        wrong = self.boxes.add(entry, self.records)
        if check and wrong:
            raise Violated("; ".join(wrong))

    def go_back(self, log: Sequence[RawEntry]) -> None:
        """Continue from an earlier log. Its entries count as known again, even if Redis had forgotten them."""
        met = [*self.forgotten, *self.entries]
        self.log = list(log)
        self.entries = [decode(*each) for each in log]
        known = {entry.id: entry for entry in self.entries}
        # A flushed server may give a number again, to another entry.
        self.forgotten = [entry for entry in met if known.get(entry.id) != entry]
        self.records, self.results, self._proof, self._costs = {}, Results(), Proof(), Costs()
        self._guards = Guards()
        self._schedules, self.boxes = Schedules(), Boxes(has_lost=True)
        for entry in self.entries:
            self._apply(entry, check=False)

    def compare(self, client: Client) -> None:
        """Compare the state lines and indexes in Redis with the log (I4, I5, I8, I10, I15). Raises Violated."""
        snapshot = client.run(client.calls.reads.snapshot(self._queue))
        if not snapshot["meta"]:
            return  # It has forgotten everything, and nobody has met it yet.
        found = problems({**snapshot, "outbox": self.log})
        found += self._guards.differences(snapshot["rates"])
        found += self._schedules.differences(snapshot["schedules"])
        if found:
            raise Violated("; ".join(found))

    def known(self, fence: str) -> bool:
        """Return whether the log has the entry with the id of this fence."""
        wanted = OutboxId.parse(fence)
        return any(entry.id == wanted for entry in self.entries)
