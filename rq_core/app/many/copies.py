"""The part of an app that enqueues copies of jobs, and replays jobs that died.

    app.replay(Filter(queue="mail", error="TimeoutError", between=(since, None)))

The id of a copy is the id of its original, ``.r``, and the name of the replay. So a replay that is made again finds the
copies that exist, in Redis or in the audit log, and copies no job twice.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from rq_core.app.handles.handle import handle_of
from rq_core.app.many.changes import ChangeProducer
from rq_core.app.untyped_enqueue import Draft
from rq_core.errors import (
    ArgumentsInvalid,
    AuditNotConfigured,
    InvalidOption,
    KeyNeeded,
    LogBehind,
    NotCopied,
    PayloadTooLarge,
)
from rq_core.model import plugins
from rq_core.model.headers import read_headers
from rq_core.model.job import NewJob, read_spec
from rq_core.model.keys import check_name, is_name, queue_keys
from rq_core.model.lib.checks import check_whole
from rq_core.model.table.machine import State
from rq_core.protocol.engine.plan import Plan

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle
    from rq_core.app.options import EnqueueOptions
    from rq_core.app.task import Task
    from rq_core.connections.client import Client
    from rq_core.model.filters.copy_reader import CopyReader
    from rq_core.model.filters.job_filter import Filter
    from rq_core.protocol.operations import Operations

PAGE: Final = 250
"""Maximum number of jobs that are copied at once."""
LOG_WAIT_S: Final = 30.0
"""Seconds for which a replay waits for the mirror."""
POLL_S: Final = 0.05
LIMIT_MAX: Final = 1_000_000_000
"""Highest limit of copies."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,12}")
_TERMS: Final = ("queue", "task", "error", "worker", "scope", "since", "until", "header", "arg")
"""The terms of a filter that a replay accepts: the audit log, or the JSON of the jobs, has their values."""

COPIED: Final = "copied"
ALIVE: Final = "alive"
"""The outcome of a job that Redis has and that is not dead."""
BEFORE: Final = "copied before"
NO_ARGUMENTS: Final = "arguments not kept"
"""The outcome of a job whose arguments neither Redis nor the log has."""
TOO_LONG: Final = "id too long"
INVALID: Final = "arguments not valid"
"""The outcome of a job whose arguments the task does not take any more."""
REFUSED: Final = "refused"
"""The outcome of a job that a full scope, or another job with its name, kept out of the queue."""


@dataclass(frozen=True)
class Replayed:
    """The result of a replay."""

    name: str
    """The name of the replay: the id of each copy is ``ID.rNAME``."""
    matched: int
    """Number of jobs that died and match."""
    copied: int
    """Number of copies that were enqueued; in a dry run, number of copies that a replay would enqueue."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs by outcome: copied, alive, copied before, arguments not kept, arguments not valid, id too long,
    refused."""


class CopyProducer(ChangeProducer):
    """A producer with the methods for copies of jobs. Threads may share a producer."""

    _tasks: dict[str, Task[..., Any]]

    def copy(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> JobHandle[Any]:
        """Enqueue a copy of a job, and return the copy's handle. The job itself does not change.

        The arguments are those of the job, changed by ``args``; they come from Redis or, if the job has left Redis,
        from the audit log, if ``audit_payload="full"`` kept them. The copy has the job's headers, and the present
        options of the task. Its id is ``JOB_ID.rNAME``; without ``name``, NAME is a digest of ``args``. If the job
        already has a copy of this name, no second copy is made: ``copy`` returns the handle of the first copy, with
        ``duplicate`` true, or raises NotCopied if the first copy has ended.

        ``queue`` is the job's queue; None: rq-core finds the queue. Raises NotCopied; LogBehind if no mirror runs;
        and the errors of enqueue.
        """
        run, changes = _name_of(name, args), dict(args or {})
        check_name("job", job_id)
        if queue is not None:
            check_name("queue", queue)
        with _Log(self.audit_url) as log:
            found = queue or self._queue_of(log, job_id)
            made = _Copying(self, log, found, run, changes)
            outcome, job = made.one(job_id)
            if job is None:
                raise NotCopied(queue=found, id=job_id, why=outcome)
            return handle_of(self, job, self.client.enqueue_one(job))

    async def copy_async(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> JobHandle[Any]:
        """See copy. The work is done in a thread."""
        import asyncio

        return await asyncio.to_thread(self.copy, job_id, queue=queue, args=args, name=name)

    def replay(
        self,
        which: Filter,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Replayed:
        """Enqueue a copy of each job that died and matches ``which``, the last death first.

        The audit log says which jobs died; ``which`` may have the terms queue, task, error, worker, scope, headers,
        args, and between (the time of the job's death). A job that was requeued since its death is not copied. A job
        that already has a copy of this ``name`` is not copied again, so a replay can be repeated at any moment. See
        ``copy`` for ``args`` and ``name``.

        ``dry_run=True`` only counts the jobs. ``limit`` is the maximum number of copies. ``progress`` is a function
        that is called after each page with two numbers: of jobs that matched, and of jobs that were copied. Raises
        AuditNotConfigured; LogBehind if no mirror runs.
        """
        check_filter(which)
        if limit is not None:
            check_whole("limit", limit, 1, LIMIT_MAX)
        unfit = [word for word, _ in which.terms if word not in _TERMS]
        if unfit:
            must = f"must be left out: a replay asks for {', '.join(_TERMS)}"
            raise InvalidOption.of(unfit[0], dict(which.terms)[unfit[0]], must)
        run, outcomes, matched = _name_of(name, args), Counter[str](), 0
        with _Log(self.audit_url) as log:
            copying = _Copying(self, log, which.queue, run, dict(args or {}), which)
            for ids in copying.died():
                room = None if limit is None else limit - outcomes[COPIED]
                page = copying.page(ids, room, dry_run=dry_run)
                matched += len(page)
                outcomes.update(page.values())
                if progress is not None:
                    progress(matched, outcomes[COPIED])
                if limit is not None and outcomes[COPIED] >= limit:
                    break
        return Replayed(run, matched, outcomes[COPIED], dict(outcomes))

    async def replay_async(
        self,
        which: Filter,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        name: str | None = None,
        dry_run: bool = False,
        limit: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Replayed:
        """See replay. The work, and ``progress``, are done in a thread."""
        import asyncio

        return await asyncio.to_thread(
            self.replay,
            which,
            args=args,
            name=name,
            dry_run=dry_run,
            limit=limit,
            progress=progress,
        )

    def _job_of(
        self,
        queue: str,
        task: str,
        args: Mapping[str, Any],
        job_id: str,
        headers: Mapping[str, str],
    ) -> NewJob:
        """Return a job of the task with this name, with the present options of the task."""
        options: EnqueueOptions = {"id": job_id, "headers": headers}
        draft = Draft(self, self._tasks.get(task), queue, task, args, options)
        if draft.placing is None:
            draft.read(self.client.run(self.client.calls.caps.policy(queue, task)))
        return draft.job(None)

    def _queue_of(self, log: _Log, job_id: str) -> str:
        found = self.client.run(self.client.calls.reads.job(job_id))
        if found is not None:
            return found.queue
        queues = []
        if log.is_there:
            for each in self.client.run(self.client.calls.reads.queues()):
                wait_for_log(self.client, log.reader, each)
            queues = log.reader.queues_of(job_id)
        if len(queues) == 1:
            return queues[0]
        why = f"it is in the queues {', '.join(queues)}: name one" if queues else "no such job"
        raise NotCopied(queue="?", id=job_id, why=why)


class _Log:
    """The audit log, opened at its first use."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._reader: CopyReader | None = None

    @property
    def is_there(self) -> bool:
        return self._url is not None

    @property
    def reader(self) -> CopyReader:
        if self._url is None:
            raise AuditNotConfigured
        if self._reader is None:
            self._reader = plugins.copies_opener()(self._url)
        return self._reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()


class _Copying:
    """Makes the copies of one replay."""

    def __init__(
        self,
        app: CopyProducer,
        log: _Log,
        queue: str,
        name: str,
        changes: Mapping[str, Any],
        which: Filter | None = None,
    ) -> None:
        self._app = app
        self._log = log
        self._queue = queue
        self._name = name
        self._changes = changes
        self._which = which

    def died(self) -> Iterator[list[str]]:
        """Yield the jobs that died, page by page."""
        assert self._which is not None, "a copy of one job asks for no others"
        # The log must have the deaths, too.
        self._wait_for_log()
        after, seen = None, set[str]()
        while True:
            found = self._log.reader.died(self._which, after, PAGE)
            # A job that died several times has a claim for each death.
            fresh = [job_id for job_id in found.ids if job_id not in seen]
            seen.update(fresh)
            if fresh:
                yield fresh
            if found.next is None:
                return
            after = found.next

    def one(self, job_id: str) -> tuple[str, NewJob | None]:
        """Return the copy of one job, or the reason why it cannot be made."""
        if self._log.is_there:
            self._wait_for_log()
        _, specs = self._sources([job_id])
        made = self._copy(job_id, specs)
        copy = copy_id(job_id, self._name)
        if made[1] is not None and self._log.is_there and self._is_known([copy]):
            alive = self._app.client.run(self._app.client.calls.reads.job(copy, [self._queue]))
            return (BEFORE, None) if alive is None else made
        return made

    def page(self, ids: Sequence[str], room: int | None, *, dry_run: bool) -> dict[str, str]:
        """Copy at most ``room`` jobs of a page. Returns the outcomes by id."""
        # The log must have all copies that were ever enqueued before this moment; Redis has those that are alive.
        self._wait_for_log()
        states, specs = self._sources(ids)
        copies = {job_id: copy_id(job_id, self._name) for job_id in ids}
        known = self._is_known(list(copies.values()))
        known |= self._states(list(copies.values())).keys()
        outcomes: dict[str, str] = {}
        jobs: dict[str, NewJob] = {}
        for job_id in ids:
            if job_id in specs and not self._matches(specs[job_id]):
                continue
            if states.get(job_id, State.DEAD) is not State.DEAD:
                outcomes[job_id] = ALIVE
            elif copies[job_id] in known:
                outcomes[job_id] = BEFORE
            elif room is None or len(jobs) < room:
                outcomes[job_id], job = self._copy(job_id, specs)
                if job is not None:
                    jobs[job_id] = job
        if jobs and not dry_run:
            accepted = self._app.enqueue_many(jobs.values())
            origin = {job.id: job_id for job_id, job in jobs.items()}
            taken = {origin[copy] for copy in accepted.ids}
            before = {origin[copy] for copy in (*accepted.duplicates, *accepted.mismatched)}
            for job_id in jobs:
                if job_id not in taken:
                    outcomes[job_id] = BEFORE if job_id in before else REFUSED
        return outcomes

    def _matches(self, spec: str) -> bool:
        return self._which is None or self._which.matches_spec(spec)

    def _copy(self, job_id: str, specs: Mapping[str, str]) -> tuple[str, NewJob | None]:
        copy = copy_id(job_id, self._name)
        if not is_name(copy):
            return TOO_LONG, None
        if job_id not in specs:
            return NO_ARGUMENTS, None
        try:
            spec = read_spec(specs[job_id])
            headers = read_headers(spec.headers_json) if spec.headers_json else {}
            args = {**json.loads(spec.args_json), **self._changes}
            made = self._app._job_of(self._queue, spec.task, args, copy, headers)  # noqa: SLF001 - of this module
        except (ArgumentsInvalid, KeyNeeded, PayloadTooLarge, ValueError, RecursionError):
            return INVALID, None
        return COPIED, made

    def _sources(self, ids: Sequence[str]) -> tuple[dict[str, State], dict[str, str]]:
        """Return the states of the jobs that Redis has, and the JSON of all jobs whose JSON is known, by id."""
        states = self._states(ids)
        calls = self._app.client.calls
        specs = self._app.client.run(_specs(calls, self._queue, list(states)))
        left = [job_id for job_id in ids if job_id not in specs]
        if left and self._log.is_there:
            specs |= self._log.reader.specs(self._queue, left)
        return states, specs

    def _states(self, ids: Sequence[str]) -> dict[str, State]:
        client = self._app.client
        return client.run(_states(client.calls, self._queue, ids))

    def _is_known(self, copies: Sequence[str]) -> set[str]:
        return self._log.reader.known(self._queue, copies)

    def _wait_for_log(self) -> None:
        wait_for_log(self._app.client, self._log.reader, self._queue)


def wait_for_log(client: Client, reader: CopyReader, queue: str) -> None:
    """Wait until the log has all events that Redis has appended to a queue's outbox so far. Raises LogBehind."""
    last = client.run(_last_entry(client.calls, queue))
    until = time.monotonic() + LOG_WAIT_S
    while last is not None and not reader.has_come_to(queue, last):
        if time.monotonic() > until:
            raise LogBehind(queue=queue)
        time.sleep(POLL_S)


def copy_id(job_id: str, name: str) -> str:
    """Return the id of a job's copy in the replay of this name."""
    return f"{job_id}.r{name}"


def check_filter(which: object) -> None:
    """Raise InvalidOption for a value that is no Filter."""
    from rq_core.model.filters.job_filter import Filter

    if not isinstance(which, Filter):
        raise InvalidOption.of("filter", which, "must be a Filter, like Filter(queue='mail')")


def _name_of(name: str | None, args: Mapping[str, Any] | None) -> str:
    """Return the name of a replay: ``name``, or a digest of the changed arguments. Raises InvalidOption."""
    if name is None:
        import hashlib

        text = json.dumps(dict(args or {}), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:6]
    given: object = name
    if not isinstance(given, str) or _NAME.fullmatch(given) is None:
        must = "must have 1 to 12 characters out of letters, digits, - and _"
        raise InvalidOption.of("name", name, must)
    return name


# Reads of Redis.


def _states(calls: Operations, queue: str, ids: Sequence[str]) -> Plan[dict[str, State]]:
    from rq_core.protocol.reads.steps import jobs_of, run_steps

    keys = queue_keys(queue, calls.delivery.prefix)
    jobs, _ = yield from run_steps(calls.delivery, queue, jobs_of(keys, ids))
    return {job.id: job.state for job in jobs}


def _specs(calls: Operations, queue: str, ids: Sequence[str]) -> Plan[dict[str, str]]:
    from rq_core.protocol.reads.paging import specs_of
    from rq_core.protocol.reads.steps import run_steps

    keys = queue_keys(queue, calls.delivery.prefix)
    found = yield from run_steps(calls.delivery, queue, specs_of(keys, ids))
    return {job_id: spec for job_id, spec in zip(ids, found, strict=True) if spec is not None}


def _last_entry(calls: Operations, queue: str) -> Plan[tuple[int, int] | None]:
    """Return the last entry of a queue's outbox (epoch and number); None if the outbox is empty."""
    outbox = queue_keys(queue, calls.delivery.prefix)("outbox")
    asked: list[list[Any]] = [["XREVRANGE", outbox, "+", "-", "COUNT", 1]]
    (entries,) = yield from calls.delivery.ask(asked, queue)
    if not entries:
        return None
    epoch, _, number = str(entries[0][0]).partition("-")
    return int(epoch), int(number)
