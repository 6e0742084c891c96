"""Judges whether two live jobs ever held the same unique name, from the log of a queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from rq_core.model.events import Entry
from rq_core.model.table.effects import EFFECTS, target
from rq_core.model.table.machine import Event, State


@dataclass
class Names:
    """The holder of each unique name, as the log shows it so far."""

    holders: dict[str, str] = field(default_factory=dict)
    """The name that each job holds, by job. Such a job is alive and not dead."""
    breaches: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """The number of jobs in each type of event."""

    def feed(self, entries: Iterable[Entry]) -> None:
        """Read the next entries of the log. The caller passes every entry once, in order."""
        for entry in entries:
            for event in entry.jobs:
                self.counts[str(entry.event)] += 1
                if entry.event not in EFFECTS:
                    continue
                name = event.fields.get("unique_name")
                if entry.event is Event.ENQUEUED and name is not None:
                    if event.job_id not in self.holders and name in self.holders.values():
                        self.breaches.append(f"{entry.id}: {event.job_id} is a second {name}")
                    self.holders[event.job_id] = name
                elif target(entry.event, event.fields) in (None, State.DEAD):
                    self.holders.pop(event.job_id, None)
