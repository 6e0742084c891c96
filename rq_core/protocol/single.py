"""One job's enqueue as one command, without a plan: what producers send most often.

A plan takes a producer longer than the command that it makes. So that is put together here of parts that are kept. If
the answer is anything but that the job was accepted, the plan goes on with the same slot and number, as if it had sent
the command itself: whatever can happen to a call is said once, in :mod:`rq_core.protocol.delivery`.
"""

from __future__ import annotations

import hashlib
from typing import Final

from rq_core.errors import RqCoreError
from rq_core.model.job import KEEP_TIE, NewJob, Profile, spec_with_headers, spec_with_keep
from rq_core.protocol.delivery import Begun, Delivery
from rq_core.protocol.enqueue import Accepted, Enqueue, kinds_of
from rq_core.protocol.plan import Plan

ACCEPTED: Final = [["ok"]]
"""The replies to a command whose job was accepted."""
KINDS_MAX: Final = 1_000
"""Kinds of jobs whose text is kept; with as many, all are forgotten."""


class Single:
    """Enqueues of one job."""

    def __init__(self, delivery: Delivery, enqueue: Enqueue) -> None:
        self._delivery = delivery
        self._enqueue = enqueue
        self._kinds: dict[tuple[int, int, str, int, str], tuple[Profile, str]] = {}
        """``kinds`` of a call, by the profile's number and whatever else of the job it depends on. The profile is kept,
        so that its number is no other one's."""

    def begin(self, job: NewJob) -> Begun | None:
        """The command that enqueues a job, to be sent at once. None: its queue has not been met, which is a plan's.

        If the replies are not ACCEPTED, ``rest`` says what became of it. ``end`` must be called in any case.
        """
        delivery = self._delivery
        if not delivery.has_met(job.queue):
            return None
        (
            job_id,
            _,
            profile,
            args_json,
            delay_ms,
            lane,
            full,
            spec_max,
            headers_json,
            due_ms,
            ties,
            name,
            call,
        ) = job
        which = (id(profile), delay_ms, full, due_ms, ties)
        kept = self._kinds.get(which)
        if kept is None:
            if len(self._kinds) >= KINDS_MAX:
                self._kinds = {}
            kept = self._kinds[which] = (profile, kinds_of(profile, delay_ms, full, due_ms, ties))
        before, after = profile.spec_parts
        spec = f"{before}{args_json}{after}"
        if headers_json:
            spec = spec_with_headers(spec, headers_json)
        if ties and KEEP_TIE in ties:
            spec = spec_with_keep(spec, ties)
        digest = hashlib.sha256(f"{args_json}{after[:-1]}".encode()).hexdigest()[:32]
        if name:
            digest = f"{digest} {name}"
        if call:
            digest = f"{digest} {call}"
        slot = delivery.take_slot(job.queue, "enqueue")
        command = (
            *delivery.head("enqueue", job.queue),
            slot.name, slot.number, delivery.name, spec_max, kept[1], job_id, "1", digest, lane, spec,
        )  # fmt: skip
        return Begun(command, slot, delivery.asking.clock())

    def rest(self, job: NewJob, begun: Begun) -> Plan[Accepted]:
        """What is left to do, and what became of the job. The first Send has been sent: it is owed its replies. Raises
        what the job was refused with."""
        result = yield from self._delivery.go_on(self._enqueue.chunk(job.queue, (job,)), begun)
        if isinstance(result, RqCoreError):
            raise result
        accepted: Accepted = result
        return accepted

    def end(self, job: NewJob, begun: Begun) -> None:
        """Let other calls have the slot."""
        self._delivery.end("enqueue", job.queue, begun)
