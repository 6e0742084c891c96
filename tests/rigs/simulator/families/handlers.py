"""The handlers of parents and of their children, and what each run of a parent got from its maps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from rq_core import errors
from rq_core.app.durable.handles import DurableSync
from rq_core.app.durable.items import Items
from rq_core.connections.client import Client
from rq_core.model.outcome import Succeeded
from rq_core.protocol.calls.boxes import SaveAnswer, Saving
from rq_core.signals import ChildrenFailed
from tests.rigs.simulator import durable
from tests.rigs.simulator.families import calls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.rigs.simulator.families.actors import FamilyWorker
    from tests.rigs.simulator.strand import Strand

SAVE_AGAIN_MS: Final = 100


@dataclass(frozen=True)
class Seen:
    """One item of a map, as a handler got it."""

    index: int
    id: str
    queue: str
    kind: str
    """The name of the outcome's class."""
    value: str | None
    """The result as JSON; None: the child did not succeed, or its result is not kept."""


@dataclass(frozen=True)
class Joined:
    """A map that was over in one run of a parent."""

    queue: str
    job_id: str
    fence: str
    number: int
    """The position of the call among the parent's calls, from 0."""
    move: str
    has_failed: bool
    """True if the map raised ChildrenFailed."""
    items: tuple[Seen, ...]


def _seen(items: Items[Any]) -> tuple[Seen, ...]:
    return tuple(
        Seen(item.index, item.id, item.queue, type(item.outcome).__name__, _value(item.outcome))
        for item in items
    )


def _value(outcome: Any) -> str | None:
    if not isinstance(outcome, Succeeded) or outcome.missing is not None:
        return None
    return json.dumps(outcome.value)


@dataclass(eq=False)
class FamilyHandler(durable.Handler):
    """One run of the handler of a parent."""

    def home(self, seat: durable.Seat) -> FamilyHome:
        return FamilyHome(self, seat)

    def save_again(self, client: Client) -> None:
        try:
            super().save_again(client)
        except errors.AuditBacklogFull:
            return  # The claim is still in force: the worker's next turn settles it again.

    def _handle(self, job: DurableSync) -> None:
        try:
            self._make_calls(job)
        except errors.AuditBacklogFull as refused:
            # As by a worker: the handler fails by the error of the save, and the job is retried.
            raise durable.Failing("retry") from refused

    def _make_calls(self, job: DurableSync) -> None:
        claim = self.claim
        for number, move in enumerate(calls.moves_of(claim)):
            if number == self.fails_at:
                raise durable.Failing(self.verdict)
            kind, *words = move.split()
            if not calls.is_map(move):
                name = f"s{number}"
                self.seen.append((name, self._done(job, kind, name, words)))
                continue
            children = calls.children_of(claim.id, number, move)
            try:
                items = job.map("parts", children, min_success=calls.needed_of(move))
            except ChildrenFailed as failure:
                self._note(number, move, failure.items, has_failed=True)
                raise durable.Failing("final") from failure
            self._note(number, move, items, has_failed=False)

    def _note(self, number: int, move: str, items: Items[Any], *, has_failed: bool) -> None:
        claim = self.claim
        joined = Joined(claim.queue, claim.id, claim.fence, number, move, has_failed, _seen(items))
        self.worker.simulation.joined.append(joined)  # type: ignore[attr-defined]

    def run(self, strand: Strand) -> None:
        super().run(strand)
        cast("FamilyWorker", self.worker).wake(self.claim.queue)


class FamilyHome(durable.StrandHome):
    """The part of a worker that the steps of a parent need."""

    async def save(self, records: Sequence[Saving]) -> SaveAnswer:
        """Save entries. While the log has no room for them, they are sent again, as by a worker.

        Raises AuditBacklogFull once the handler must stop, or the lease is not in force by the worker's clock.
        """
        while True:
            try:
                return await super().save(records)
            except errors.AuditBacklogFull:
                if self._context.cancelled or not self._lease_holds():
                    raise
                self._handler.pause_before_next_try(SAVE_AGAIN_MS)
