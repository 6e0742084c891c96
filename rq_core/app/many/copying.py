"""Makes the copy of one job, or the copies of a replay, page by page.

A program, the command line and the web page use the same steps. A step needs only the filter, the name of the replay
and a place in the audit log. So another process can continue a replay that was stopped.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.handlers.outgoing import outgoing_jobs
from rq_core.app.handles.handle import handle_of
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
from rq_core.model.headers import FORK_HEADER, TRACE_HEADER, read_headers
from rq_core.model.job import NewJob, read_spec
from rq_core.model.keys import check_name, is_name, queue_keys
from rq_core.model.settings import AUDIT_PAYLOADS
from rq_core.model.table.machine import State
from rq_core.protocol.engine.plan import Plan

if TYPE_CHECKING:
    from rq_core.app.handles.handle import JobHandle
    from rq_core.app.options import EnqueueOptions
    from rq_core.app.producer import Producer
    from rq_core.app.task import Task
    from rq_core.connections.client import Client
    from rq_core.model.filters.copy_reader import After, CopyReader
    from rq_core.model.filters.job_filter import Filter
    from rq_core.protocol.calls.enqueue import Accepted
    from rq_core.protocol.operations import Operations

PAGE: Final = 250
"""Maximum number of jobs that are copied at once."""
LOG_WAIT_S: Final = 30.0
"""Maximum seconds for which a copy, or each page of a replay, waits until the mirror has written the queue's events to
the audit log."""
POLL_S: Final = 0.05
_NAMING: Final = "name=…, or on the command line --name"
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,12}")
TERMS: Final = ("queue", "task", "error", "worker", "scope", "since", "until", "header", "arg")
"""The terms of a filter that a replay accepts. The replay finds their values in the audit log, or in the JSON of the
jobs."""

COPIED: Final = "copied"
ALIVE: Final = "alive"
"""The outcome, in a replay, of a job that is not copied because Redis has it and it is not dead."""
BEFORE: Final = "copied before"
NO_ARGUMENTS: Final = "arguments not kept"
"""The outcome, in a replay, of a job whose arguments neither Redis nor the audit log has."""
_ENQUEUE_AGAIN: Final = (
    "Redis no longer has it, and the program that enqueued it does not let the log keep arguments"
    ' (`App(audit_payload="full")`; on the command line: `rq-core enqueue --app` of such an app). Enqueue it again'
)
TOO_LONG: Final = "id too long"
INVALID: Final = "arguments not valid"
"""The outcome, in a replay, of a job whose task does not accept the job's arguments after the replay has changed
them."""
NO_KEY: Final = "needs the task's code"
"""The outcome, in a replay, of a job whose scope, cost or unique name must be computed by a function that this process
lacks."""
TOO_LARGE: Final = "too large"
"""The outcome, in a replay, of a job whose arguments, with the replay's changes, are larger than ``max_payload``."""
REFUSED: Final = "refused"
"""The outcome, in a replay, of a job whose copy the queue refused: a cap is full, or another job holds the copy's
unique name."""


NAME_LOG: Final = (
    "If it has ended, name the audit database, which may have it: RQ_CORE_AUDIT_URL, App(audit=…), or on the command"
    " line --audit"
)
"""The advice in an error for a job that is not in Redis, if no audit database is set."""


@contextlib.contextmanager
def log_of(url: str | None) -> Iterator[CopyReader | None]:
    """Yield a reader of the audit log at a URL. The reader connects at its first use. Yield None without a URL."""
    if url is None:
        yield None
        return
    with contextlib.closing(plugins.copies_opener()(url)) as reader:
        yield reader


def check_terms(which: Filter) -> None:
    """Raise InvalidOption for a filter with a term that a replay does not accept."""
    for word, value in which.terms:
        if word not in TERMS:
            must = f"must be left out: a replay asks for {', '.join(TERMS)}"
            raise InvalidOption.of(word, value, must)


class CopiedPage(NamedTuple):
    """The outcomes of the jobs of one page of a replay."""

    outcomes: dict[str, str]
    """The outcomes of the jobs that matched, by id."""
    next: After | None
    """The position in the audit log after which the next page begins. None: there are no more jobs."""


class Copying:
    """Makes the copy of one job, or the copies of a replay, page by page."""

    def __init__(
        self,
        app: Producer,
        tasks: Mapping[str, Task[..., Any]],
        log: CopyReader | None,
        queue: str,
        name: str,
        changes: Mapping[str, Any] | None,
        which: Filter | None = None,
        *,
        by: str | None = None,
        reason: str = "",
        mine: str = "",
        wait_s: float | None = None,
    ) -> None:
        """``tasks`` are the tasks whose code this process has. Copies of other tasks have the options that workers
        registered.

        ``mine`` is a text that begins the ``reason`` of each copy of this replay. With it, a replay that is continued
        recognizes the copies that its earlier part enqueued without getting Redis' answer: they count as copied.
        ``wait_s`` is the longest wait for the mirror, which writes the audit log, in seconds. None means LOG_WAIT_S;
        with 0, the log is read as it is.

        Raises InvalidName. Raises InvalidOption, also for a filter with a term that a replay does not accept.
        """
        if which is not None:
            check_terms(which)
        self._app = app
        self._tasks = tasks
        self._log = log
        self._queue = queue
        self._name = name
        self._changes = dict(changes or {})
        self._which = which
        self._by = None if by is None else check_name("actor", by)
        from rq_core.protocol.calls.admin import check_why  # To declare a task needs no protocol.

        self._why = check_why(reason)
        self._mine = mine
        self._wait_s = wait_s
        self._seen: set[str] = set()
        """The ids of the jobs on the pages so far. Later pages leave these jobs out: the log has an entry for each
        death, so a job that died several times is found several times."""

    def one(
        self, job_id: str, copy: str | None = None, headers: Mapping[str, str] | None = None
    ) -> JobHandle[Any]:
        """Copy one job, and return the copy's handle. Raises NotCopied, and the errors of enqueue.

        ``copy`` is the id of the copy; with None, the id is ``JOB_ID.rNAME``, as in a replay. ``headers`` are further
        headers of the copy.
        """
        self._wait_for_log()
        _, specs = self._sources([job_id])
        outcome, job = self._copy(job_id, specs, copy or copy_id(job_id, self._name), headers)
        if job is not None and self._log is not None and self._log.known(self._queue, [job.id]):
            calls = self._app.client.calls
            if self._app.client.run(calls.reads.job(job.id, [self._queue])) is None:
                outcome = f"{BEFORE}, as {job.id}, which has ended. For another copy, give another name: {_NAMING}"
                job = None
        if outcome == NO_ARGUMENTS:
            why = f"Redis does not have it. {NAME_LOG}" if self._log is None else _ENQUEUE_AGAIN
            outcome = f"{outcome}: {why}"
        if job is None:
            raise NotCopied(queue=self._queue, id=job_id, why=outcome)
        return handle_of(self._app, job, self._enqueue({job_id: job}))

    def step(self, after: After | None, room: int | None, *, dry_run: bool) -> CopiedPage:
        """Read from the log the next page of jobs that died and match the filter, and copy at most ``room`` of these
        jobs. With ``room=None``, there is no limit.

        With ``dry_run``, the method enqueues no copy. Raises AuditNotConfigured, and LogBehind.
        """
        if self._log is None or self._which is None:
            raise AuditNotConfigured
        # The log must have all deaths and all copies until this moment; Redis has the copies that are alive.
        self._wait_for_log()
        found = self._log.died(self._which, after, PAGE)
        fresh = [job_id for job_id in found.ids if job_id not in self._seen]
        self._seen.update(fresh)
        outcomes = self._page(fresh, found.last, room, dry_run=dry_run) if fresh else {}
        return CopiedPage(outcomes, found.next)

    def _page(
        self, ids: Sequence[str], last: Collection[str], room: int | None, *, dry_run: bool
    ) -> dict[str, str]:
        assert self._log is not None
        states, specs = self._sources(ids)
        copies = {job_id: copy_id(job_id, self._name) for job_id in ids}
        known = self._log.known(self._queue, list(copies.values()))
        known |= self._states(list(copies.values())).keys()
        # A job that died several times is on several pages; the page of its last death has counted its copy.
        mine = self._made_before(
            [copies[each] for each in ids if each in last and copies[each] in known]
        )
        room = None if room is None else max(0, room - len(mine))
        outcomes: dict[str, str] = {}
        jobs: dict[str, NewJob] = {}
        for job_id in ids:
            if copies[job_id] in mine:
                outcomes[job_id] = COPIED
                continue
            if job_id in specs and not self._matches(specs[job_id]):
                continue
            if states.get(job_id, State.DEAD) is not State.DEAD:
                outcomes[job_id] = ALIVE
            elif copies[job_id] in known:
                outcomes[job_id] = BEFORE
            elif room is None or len(jobs) < room:
                outcomes[job_id], job = self._copy(job_id, specs, copies[job_id])
                if job is not None:
                    jobs[job_id] = job
                    if len(jobs) == room and not dry_run:
                        # Copies that are refused leave room for others.
                        outcomes |= self._enqueued(jobs)
                        room -= sum(outcomes[each] == COPIED for each in jobs)
                        jobs = {}
        if jobs and not dry_run:
            outcomes |= self._enqueued(jobs)
        return outcomes

    def _made_before(self, copies: Sequence[str]) -> set[str]:
        """Return the ids in ``copies`` under which an earlier, interrupted part of this replay has already enqueued a
        copy."""
        if not self._mine or not copies or self._log is None:
            return set()
        reasons = self._log.reasons(self._queue, copies)
        return {each for each, why in reasons.items() if why.startswith(self._mine)}

    def _enqueued(self, jobs: Mapping[str, NewJob]) -> dict[str, str]:
        """Enqueue copies, and return their outcomes. The keys of both mappings are the ids of the originals."""
        accepted = self._enqueue(jobs)
        taken, before = set(accepted.ids), {*accepted.duplicates, *accepted.mismatched}
        return {
            job_id: COPIED if job.id in taken else BEFORE if job.id in before else REFUSED
            for job_id, job in jobs.items()
        }

    def _enqueue(self, copies: Mapping[str, NewJob]) -> Accepted:
        """Enqueue copies. The keys of ``copies`` are the ids of the originals.

        If the audit log has the JSON of an original, it also keeps the JSON of the copy. The copy can then be restored
        or copied, too.
        """
        kept = self._log.specs(self._queue, list(copies)) if self._log is not None else {}
        jobs = [
            job._replace(spec_max=AUDIT_PAYLOADS["full"]) if job_id in kept else job
            for job_id, job in copies.items()
        ]
        client = self._app.client
        if self._app.outgoing_functions:
            jobs = [*outgoing_jobs(self._app.outgoing_functions, jobs, "copy")]
        return client.run(client.calls.enqueue.many(jobs, by=self._by, why=self._why))

    def _matches(self, spec: str) -> bool:
        return self._which is None or self._which.matches_spec(spec)

    def _copy(
        self,
        job_id: str,
        specs: Mapping[str, str],
        copy: str,
        more: Mapping[str, str] | None = None,
    ) -> tuple[str, NewJob | None]:
        """Make the copy of a job, with the id ``copy``. ``more`` are further headers of the copy. Return the outcome,
        and the copy if it can be enqueued."""
        if not is_name(copy):
            return TOO_LONG, None
        if job_id not in specs:
            return NO_ARGUMENTS, None
        try:
            spec = read_spec(specs[job_id])
            headers = dict(read_headers(spec.headers_json)) if spec.headers_json else {}
            if headers.get(TRACE_HEADER) == "first":
                # The copy is not what the original's trace waited for.
                del headers[TRACE_HEADER]
            headers.pop(FORK_HEADER, None)  # The copy of a fork begins at the first step.
            headers |= more or {}
            args = {**json.loads(spec.args_json), **self._changes}
            made = self._job_of(spec.task, args, {"id": copy, "headers": headers})
        except KeyNeeded:
            return NO_KEY, None
        except PayloadTooLarge:
            return TOO_LARGE, None
        except (ArgumentsInvalid, ValueError, RecursionError):
            return INVALID, None
        return COPIED, made

    def _job_of(self, task: str, args: Mapping[str, Any], options: EnqueueOptions) -> NewJob:
        """Make a job of the task with this name, with the options that the task has now."""
        app = self._app
        draft = Draft(app, self._tasks.get(task), self._queue, task, args, options)
        if draft.placing is None:
            draft.read(app.client.run(app.client.calls.caps.policy(self._queue, task)))
        return draft.job(None)

    def _sources(self, ids: Sequence[str]) -> tuple[dict[str, State], dict[str, str]]:
        """Return two mappings by job id: the state of each job in Redis, and the JSON (task, arguments and headers) of
        each job that Redis or the audit log has."""
        states = self._states(ids)
        calls = self._app.client.calls
        specs = self._app.client.run(_specs(calls, self._queue, list(states)))
        left = [job_id for job_id in ids if job_id not in specs]
        if left and self._log is not None:
            specs |= self._log.specs(self._queue, left)
        return states, specs

    def _states(self, ids: Sequence[str]) -> dict[str, State]:
        client = self._app.client
        return client.run(_states(client.calls, self._queue, ids))

    def _wait_for_log(self) -> None:
        if self._log is not None and self._wait_s != 0:
            wait_for_log(self._app.client, self._log, self._queue, self._wait_s)


def wait_for_log(
    client: Client, reader: CopyReader, queue: str, within_s: float | None = None
) -> None:
    """Wait until the audit log has all events that are in a queue's outbox now. The outbox is the stream in Redis from
    which the mirror copies events to the log. Raises LogBehind."""
    last = client.run(_last_entry(client.calls, queue))
    until = time.monotonic() + (LOG_WAIT_S if within_s is None else within_s)
    while last is not None and not reader.has_come_to(queue, last):
        if time.monotonic() > until:
            raise LogBehind(queue=queue)
        time.sleep(POLL_S)


def copy_id(job_id: str, name: str) -> str:
    """Return the id of the copy that the replay ``name`` makes of a job."""
    return f"{job_id}.r{name}"


def replay_name(name: str | None, args: Mapping[str, Any] | None) -> str:
    """Return the name of a replay: ``name``, or by default a digest of the changed arguments.

    Raises InvalidOption for an invalid name.
    """
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
    from rq_core.protocol.reads.matches import specs_of
    from rq_core.protocol.reads.steps import run_steps

    keys = queue_keys(queue, calls.delivery.prefix)
    found = yield from run_steps(calls.delivery, queue, specs_of(keys, ids))
    return {job_id: spec for job_id, spec in zip(ids, found, strict=True) if spec is not None}


def _last_entry(calls: Operations, queue: str) -> Plan[tuple[int, int] | None]:
    """Return the position of the last event in a queue's outbox, the stream of events that a mirror copies to SQL. The
    position is the number of the queue's unbroken history (the epoch), and the number of the event. Return None if the
    outbox is empty."""
    outbox = queue_keys(queue, calls.delivery.prefix)("outbox")
    asked: list[list[Any]] = [["XREVRANGE", outbox, "+", "-", "COUNT", 1]]
    (entries,) = yield from calls.delivery.ask(asked, queue)
    if not entries:
        return None
    epoch, _, number = str(entries[0][0]).partition("-")
    return int(epoch), int(number)
