"""The signals and the waits of one durable job during the replay."""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from rq_core.model.durable.boxes import SIGNALS_MAX, signal_of
from sql_audit.store.job_rows import EventRow


class WaitingEntry(NamedTuple):
    """A wait for a signal, or a sleep, of a durable job that is not over yet."""

    name: str
    kind: str
    """``wait`` or ``sleep``."""
    until_ms: int | None


class Signals:
    """The signals that a durable job has received, and its open waits, after the events so far."""

    def __init__(self) -> None:
        self.sent = 0
        """Number of signals that the job has received."""
        self.digests: dict[int, str] = {}
        """The digest of each signal that no wait has taken, by the signal's number."""
        self.sizes: dict[int, int | None] = {}
        """The number of bytes of each untaken signal's value, by the signal's number."""
        self.names: dict[str, list[int]] = {}
        """The numbers of the signals that no wait has taken, by name, oldest first."""
        self.keys: dict[str, tuple[int, int]] = {}
        """By a sender's key: the number of the last signal that was sent with the key, and the epoch in which it was
        sent."""
        self.lost: set[int] = set()
        """The numbers of the signals that Redis has lost for good: no restore could put them back."""
        self.skipped: set[int] = set()
        """Numbers of signals that the log lacks, because Redis lost them in a failover. A worker has put back a signal
        with a higher number, and may put back these signals, too."""
        self.waits: dict[int, WaitingEntry] = {}
        """The waits and sleeps that are not over, by the number of each in the job's box."""
        self.ripe: EventRow | None = None
        """The event after which the parked job can go on: ``signalled`` or ``parked``. Redis wakes the job in the same
        call, so its next event must be ``woken``, apart from further signals. None: the job is not parked, or must
        still wait."""

    def oldest(self, entry: str) -> int | None:
        """Return the number of the oldest signal that the wait named ``entry`` can take; None: no such signal."""
        numbers = self.names.get(signal_of(entry))
        return numbers[0] if numbers else None

    def receive(
        self, number: int, name: str, key: str | None, digest: str, size: int | None, epoch: int
    ) -> None:
        """Add a signal; no wait has taken it yet."""
        self.sent = max(self.sent, number)
        self.digests[number], self.sizes[number] = digest, size
        insort(self.names.setdefault(name, []), number)
        if key is not None:
            self.keys[key] = number, epoch

    def put_back(self, number: int) -> None:
        """Note that a worker has put back the signal ``number``, which a wait had taken before Redis lost it in a
        failover.
        """
        self.skipped.update(range(self.sent + 1, min(number, SIGNALS_MAX)))
        self.skipped.discard(number)
        self.sent = max(self.sent, number)

    def lose(self, number: int) -> bool:
        """Note that Redis has lost a signal for good. The sender may send the signal again, with a new number.

        Return False if a wait has taken the signal, or if no signal has this number.
        """
        if number in self.lost:
            return True  # A restore that was interrupted was repeated.
        waiting = next((name for name, numbers in self.names.items() if number in numbers), None)
        if waiting is None:
            return False
        del self.digests[number], self.sizes[number]
        self.names[waiting].remove(number)
        self.keys = {key: last for key, last in self.keys.items() if last[0] != number}
        self.lost.add(number)
        return True

    def forget(self, number: int, name: str, digest: str) -> bool:
        """Remove a signal that no wait has taken. Return False if no such signal has this number, name and digest."""
        if self.digests.get(number) != digest or number not in self.names.get(name, ()):
            return False
        del self.digests[number], self.sizes[number]
        self.names[name].remove(number)
        return True
