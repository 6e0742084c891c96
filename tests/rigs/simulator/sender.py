"""The actor that sends signals to durable jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rq_core import errors
from rq_core.connections.client import Client
from rq_core.model.durable.boxes import signal_of
from rq_core.model.table.machine import State
from rq_core.protocol.calls.boxes import Sending
from rq_core.protocol.engine.plan import Patience
from tests.kit.fleet import QUEUE
from tests.rigs.simulator import durable
from tests.rigs.simulator.actors import Actor
from tests.rigs.simulator.strand import Strand

WAITING: Final = (State.RUNNING, State.PARKED)


class Sender(Actor):
    """Sends signals to jobs, some of them twice with the same key. At the end it sends each signal that a parked job
    needs."""

    def bodies(self) -> dict[str, Callable[[Strand], None]]:
        return {self.role: self.work}

    def work(self, strand: Strand) -> None:
        client = self.client(strand, Patience(unsent=0.4, unknown=1.5))
        while True:
            for signal in self.wanted() if self.healing else self.some():
                self.send(strand, client, signal)
            self.sleep(strand, 200 if self.healing else self.random.choice((5, 40, 200, 600)))

    def some(self) -> list[Sending]:
        """Return one signal, most often to a running or parked job. Return no signal if there is no job."""
        simulation = self.simulation
        records = simulation.watch.records
        jobs = [i for i in sorted(records) if records[i].state in WAITING]
        if not jobs or self.random.random() < 0.2:
            jobs = sorted(simulation.told.attempted)
        if not jobs:
            return []
        name = self.random.choice(durable.SIGNALS)
        return [simulation.mail.next(self.random.choice(jobs), name, self.name, self.random)]

    def wanted(self) -> list[Sending]:
        """Return a signal for each wait of a parked job, if the wait has no time limit."""
        found = []
        boxes, mail = self.simulation.watch.boxes, self.simulation.mail
        for job_id, event in sorted(boxes.parked.items()):
            box = boxes.box_of(job_id)
            for mark in event.fields["waits"].split(",") if box else ():
                step = box.entries.get(int(mark)) if box else None
                if step is not None and step.kind == "wait" and step.until_ms is None:
                    name = signal_of(step.name)
                    found.append(mail.next(job_id, name, self.name, self.random))
        return found

    def send(self, strand: Strand, client: Client, signal: Sending) -> None:
        """Send a signal. A signal with a key is sent again until an answer comes."""
        while True:
            plan = client.calls.mail.signal(QUEUE, signal, by=self.name, why="asked")
            try:
                sent = client.run(plan)
            except (errors.ServerUnavailable, errors.OutcomeUnknown):
                if not signal.key:
                    return
                self.sleep(strand, durable.AGAIN_MS)
                continue
            if sent.number is not None:
                self.simulation.mail.acknowledged.append((signal, sent))
            return
