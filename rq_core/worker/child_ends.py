"""Sends signals to durable jobs whose children have ended, and cancels the children of cancelled jobs. A child is a job
that a durable job, its parent, has enqueued and waits for.

When the parent gets the signal, it reads how its child ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.errors import RqCoreError
from rq_core.model.durable.children import (
    ORPHANED,
    Parent,
    parent_of,
    read_child_wait,
)
from rq_core.model.headers import PARENT_HEADER, read_headers
from rq_core.model.job import Claim, read_spec
from rq_core.model.lib.text import counted
from rq_core.protocol.calls.boxes import BATCH_MAX, Sending, send_signals
from rq_core.protocol.engine.plan import Call
from rq_core.worker.settlement import Settlement

log = logging.getLogger(__package__)

_MARK: Final = f'"{PARENT_HEADER}":'
_KEPT: Final = '{"keep":'
"""The text with which the JSON of a job begins if its result is kept. The result of every child is kept."""
_KEPT_LENGTH: Final = len(_KEPT)
_VALUE: Final = "null"
WHY: Final = ORPHANED
"""The reason that the audit log shows for children that a worker has cancelled."""


def parent_of_claim(claim: Claim) -> Parent | None:
    """Return the parent of a claimed job: the durable job that waits for the job's end. The name of this wait is part
    of the result. None: no job waits.
    """
    if not claim.spec.startswith(_KEPT) or _MARK not in claim.spec:
        return None
    try:
        headers = read_spec(claim.spec).headers_json
        return parent_of(read_headers(headers), claim.id) if headers else None
    except ValueError:
        return None


def parents_of(settled: Iterable[Settlement], outcomes: Mapping[str, str]) -> list[Parent]:
    """Return the parents of those jobs that these settlements have ended. A parent is a durable job that waits for the
    end of its child.

    The header of a job names its parent. An invalid header names no parent. ``outcomes``: job id → the answer of Redis
    to the settlement; successes are left out.
    """
    found: list[Parent] = []
    for each in settled:
        outcome = outcomes.get(each.claim.id)
        is_over = (
            each.verdict == "complete" if outcome is None else outcome in ("dead", "cancelled")
        )
        parent = parent_of_claim(each.claim) if is_over else None
        if parent is not None:
            found.append(parent)
    return found


def last_of_maps(parents: Iterable[Parent]) -> list[Parent]:
    """Return the parents that must get a signal. The children of ``parents`` ended in one call.

    If several of the children belong to one ``map`` of a parent, the parent gets only one signal, for the last child: a
    parent waits for the last child of the map that is alive.
    """
    found: dict[tuple[str, str, str, int], tuple[int, Parent]] = {}
    for parent in parents:
        place = read_child_wait(parent.wait)
        if place is not None:
            # A job of another box must not take the place of a child: Redis refuses its signal.
            of = (parent.queue, parent.id, parent.life, place[0])
            if of not in found or found[of][0] < place[1]:
                found[of] = (place[1], parent)
    return [parent for _, parent in found.values()]


def calls_for(parents: Iterable[Parent], by: str) -> list[Call[Any]]:
    """Return the Redis calls that send signals to these parents: their children have ended, all in one call."""
    return _signals(last_of_maps(parents), by)


def _signals(parents: Iterable[Parent], by: str) -> list[Call[Any]]:
    by_queue: dict[str, list[Sending]] = {}
    for parent in parents:
        record = Sending(parent.id, parent.wait, "", _VALUE, parent.life)
        by_queue.setdefault(parent.queue, []).append(record)
    return [
        send_signals(queue, records[first : first + BATCH_MAX], by=by)
        for queue, records in by_queue.items()
        for first in range(0, len(records), BATCH_MAX)
    ]


def orphans_of(settled: Iterable[Settlement], outcomes: Mapping[str, str]) -> dict[str, list[str]]:
    """Return queue → ids of the children that the worker must cancel: their parents ended as cancelled, and had not
    saved that these children succeeded.

    Some of these children may not exist: the job may have been cancelled before it enqueued them.
    """
    found: dict[str, list[str]] = {}
    for each in settled:
        if each.unsaved is not None and outcomes.get(each.claim.id) == "cancelled":
            for queue, job_id in each.unsaved():
                found.setdefault(queue, []).append(job_id)
    return found


REFUSED: Final = frozenset({"gone", "stale"})
"""The answers of Redis to the settlement of a claim that is no longer in force."""


class SignalsBehind(NamedTuple):
    """Signals to the parents of ended children. They are sent in the same round trip as the calls that end the
    children, after these calls.
    """

    calls: Sequence[Call[Any]]
    children: Collection[str]
    """Ids of the ended children for which these signals are sent."""


NO_SIGNALS: Final = SignalsBehind((), ())


class ChildEnds:
    """Sends signals to the parents of ended children, and cancels the children of cancelled parents, while the worker
    goes on to claim and settle.
    """

    def __init__(self, client: Any, worker: str) -> None:
        self._client = client
        self._worker = worker
        self._tasks: set[asyncio.Task[None]] = set()

    def signals_behind(self, calls: Iterable[Sequence[Settlement]]) -> SignalsBehind:
        """Return the Redis calls that send signals to the parents of the jobs that succeeded.

        The calls must reach Redis after the calls that settle the successes. ``calls`` has, for each of those settling
        calls, its settlements. If Redis refuses to settle a success, the signal still wakes the parent, which then
        waits again. In a cluster, no calls are returned: another shard might carry out the signal first.
        """
        if self._client.one_slot:
            # The parent may be on another shard, which may carry out the signal first.
            return NO_SIGNALS
        parents: list[Parent] = []
        children: list[str] = []
        for settled in calls:
            ended = [
                each
                for each in settled
                if each.verdict == "complete" and each.claim.spec[:_KEPT_LENGTH] == _KEPT
            ]
            if ended:
                found = parents_of(ended, {})
                children += [parent.child for parent in found]
                parents += last_of_maps(found)
        return SignalsBehind(_signals(parents, self._worker), children) if parents else NO_SIGNALS

    def note(
        self,
        settled: Sequence[Settlement],
        outcomes: Mapping[str, str],
        signalled: Collection[str] = (),
    ) -> None:
        """Start asyncio tasks for the parents and children of the jobs that these settlements ended. Does not block.

        One task sends signals to the parents of these jobs. Another task cancels the children of cancelled jobs.
        ``signalled``: ids of jobs whose parents have already got signals. All the settlements must have been sent in
        one call.
        """
        # No call is made for a job that is no child and no parent: every job of every worker comes here.
        for each in settled:
            if each.claim.spec[:_KEPT_LENGTH] == _KEPT or each.unsaved is not None:
                break
        else:
            return
        if signalled and any(outcomes.get(s.claim.id) in REFUSED for s in settled):
            # A refused one may have been the last of its map, for whose other children no signal was sent.
            signalled = ()
        parents = parents_of([s for s in settled if s.claim.id not in signalled], outcomes)
        orphans = orphans_of(settled, outcomes)
        if parents:
            self._start(self._tell(parents))
        if orphans:
            self._start(self._cancel(orphans))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until all signals are sent and all children are cancelled."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _cancel(self, orphans: Mapping[str, Sequence[str]]) -> None:
        cancel = self._client.calls.families.cancel
        for queue, ids in orphans.items():
            try:
                await self._client.run(cancel(queue, ids, by=self._worker, why=WHY))
            except RqCoreError as error:
                log.warning(
                    "%s of a cancelled job go on: %s", counted(len(ids), "child", "children"), error
                )

    async def _tell(self, parents: Sequence[Parent]) -> None:
        try:
            results = await self._client.carry_out(calls_for(parents, self._worker))
        except RqCoreError as error:
            results = [error]
        for result in results:
            if isinstance(result, RqCoreError):
                # The parents look by themselves, when the times of their waits are over.
                log.warning("parents got no signal that children have ended: %s", result)
