"""Entry points. rq_core imports no other package directly. It finds commands and audit logs of other packages by entry
points.

``rq_core.commands`` has commands of ``rq-core``, each under its name. ``rq_core.audit`` has functions that use a
database: ``history``, ``endings``, ``drift``, ``mirror``, ``reader``, ``questions`` and ``copies`` of an audit log;
``relay``, ``inbox``, ``inbox_reader`` and ``inbox_ddl`` of an inbox. For each of them, a function below returns the
entry point's function.

A command is a click command. Its module must be quick to import, because ``rq-core --help`` imports it to show the
command's first sentence. ``pyproject.toml`` declares the entry points of sql_audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from rq_core.errors import AuditNotConfigured

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from rq_core.model.filters.copy_reader import OpenCopies
    from rq_core.model.outcome import Outcome


COMMANDS: Final = "rq_core.commands"
AUDIT: Final = "rq_core.audit"


class HistoryReader(Protocol):
    """A function that returns a job's events, oldest first; without a queue (None), from all queues. An event has
    ``type`` (a machine.Event as text), ``queue``, ``at_ms`` (Unix ms), ``detail`` (fields) and ``orphaned`` (Redis
    forgot it)."""

    def __call__(self, audit_url: str, job_id: str, queue: str | None, /) -> list[Any]: ...


class EndingsReader(Protocol):
    """Reads the outcomes of jobs from one audit log."""

    def read(
        self, queue: str, jobs: Mapping[str, tuple[int, int]], /
    ) -> Mapping[str, Outcome[Any]]:
        """Return the outcomes of jobs that have left Redis, by id. ``jobs`` has, for each id, the epoch and number of
        an outbox entry. A job is left out while the log lacks this entry. Raises RqCoreError if the database does not
        answer."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenEndings(Protocol):
    """A function that returns an EndingsReader for the audit log at a URL. Raises RqCoreError for a bad URL or a
    missing driver."""

    def __call__(self, audit_url: str, /) -> EndingsReader: ...


class Drift(Protocol):
    """A function that compares a queue in Redis with its audit log. It returns an Evidence of rq_core.doctor.
    ``client`` is a Client. Raises RqCoreError if Redis or the database does not answer."""

    def __call__(self, audit_url: str, client: Any, queue: str, /) -> Any: ...


class CompanionCommand(Protocol):
    """A function that returns the command line of a mirror or a relay, and variables for its environment.

    ``database`` is the URL of the database that the process uses. ``made`` are queues that were created just now; a
    mirror begins with these queues. URLs are passed in the environment, because they contain passwords and every user
    of a machine can read command lines.

    When its standard input is closed, or on SIGTERM, the process finishes its work and ends: a mirror copies the
    remaining events. A mirror is ready (lib/readiness) once it has checked that the database is the log of this Redis.
    """

    def __call__(
        self, redis_url: str, prefix: str, database: str, made: Sequence[str] = (), /
    ) -> tuple[list[str], dict[str, str]]: ...


class FindInInbox(Protocol):
    """A function that looks for jobs of a queue in an inbox, a table in the user's database. It returns, by job id,
    where the job's row is: ``inbox`` or ``parked``. Jobs without a row are left out. Raises RqCoreError if the database
    does not answer."""

    def __call__(self, inbox_url: str, queue: str, ids: Sequence[str], /) -> dict[str, str]: ...


class OpenReader(Protocol):
    """A function that returns an AuditReader for the audit log at a URL. It does not connect yet. Raises RqCoreError
    for a bad URL or a driver that is not installed."""

    def __call__(self, audit_url: str, /) -> AuditReader: ...


class AuditQuestions(Protocol):
    """Answers the questions of a web page from one audit log. Threads may share the object. The answers have the form
    that ``rq-core audit … --json`` prints. Times are Unix ms. Each method raises RqCoreError if the database does not
    answer in time."""

    def history(
        self, job_id: str, queue: str, /, before: tuple[int, int, int] | None = None
    ) -> dict[str, Any]:
        """Return a document with the last ``events`` of a job, oldest first. ``before`` is the position (epoch, seq,
        ordinal) of an event in the log; only earlier events are returned. ``older`` and ``newer`` say whether the log
        has events before and after the returned events. ``notes`` say what is missing. For an unknown job, ``events``
        is empty."""
        ...

    def why(self, job_id: str, queue: str, /) -> dict[str, Any] | None:
        """Return why a job has waited: its ``waits`` with their causes, the ``pauses``, and the job's present
        ``state``. Return None if the log does not have the job."""
        ...

    def at(self, queue: str, at_ms: int, /) -> dict[str, Any]:
        """Return a queue at a past time: the ``running`` and ``waiting`` jobs, and the ``scopes``."""
        ...

    def schedule(self, queue: str, name: str, count: int, /) -> dict[str, Any]:
        """Return a document about a schedule: its last ``count`` instants with their outcomes (``ticks``), the
        ``changes`` since the first of these instants, and the present state. ``says`` is this state as a sentence."""
        ...

    def tail(self, queues: Sequence[str], lines: int, /) -> list[dict[str, Any]]:
        """Return the last events of these queues, ordered by time: at most ``lines`` events of each queue."""
        ...

    def events(
        self,
        queue: str,
        lines: int,
        /,
        *,
        before: tuple[int, int, int] | None = None,
        after: tuple[int, int, int] | None = None,
    ) -> dict[str, Any]:
        """Return a document with at most ``lines`` ``events`` of a queue, oldest first: the last ones. ``before`` and
        ``after`` are positions (epoch, seq, ordinal) in the log. With ``before``, the last events before this position
        are returned. With ``after``, the first events after this position are returned. ``older`` and ``newer`` say
        whether the log has events before and after the returned events."""
        ...

    def ended(
        self,
        outcomes: Sequence[str],
        queue: str | None,
        /,
        *,
        task: str,
        error: str,
        worker: str,
        scope: str,
        since_ms: int,
        until_ms: int | None,
        after: tuple[int, str, str, str] | None,
        limit: int,
    ) -> dict[str, Any]:
        """Return a document with ``rows``: at most ``limit`` claims that ended with one of these outcomes, newest
        first. ``looked`` is the number of claims that were read. ``next`` is the value of ``after`` for the next page;
        None: there is no further page. The first part of ``next`` is a time (Unix ms); all claims that ended after this
        time were read. A condition that is an empty text excludes no claim. To list successes, a queue must be
        given."""
        ...

    def pauses(self, queue: str, scopes: Sequence[str] | None, /) -> dict[str, dict[str, Any]]:
        """Return the last pause of each of these scopes, by scope. Without scopes (None), return the last pauses of
        the scopes that paused most recently."""
        ...

    def with_id(self, job_id: str, /) -> list[dict[str, Any]]:
        """Return the ``queue``, ``task``, ``state`` and ``finished_at_ms`` of each job with this id. Jobs in several
        queues may have the same id."""
        ...

    def last_ticks(self, queue: str, /) -> list[dict[str, Any]]:
        """Return the last instant of each schedule of a queue, as rows of the view ``schedule_tick``."""
        ...

    def minutes(self, since_ms: int, until_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return the number of claims that ended in each minute, by ``outcome``. Without a ``queue``, claims of all
        queues are counted."""
        ...

    def errors(self, since_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return the errors with which claims have ended since ``since_ms`` (Unix ms), by task, most frequent first."""
        ...

    def deaths(self, since_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return the number of ``died`` events since ``since_ms`` (Unix ms), by task, error and ``hour_ms``, last hour
        first."""
        ...

    def findings(self) -> dict[str, Any]:
        """Return the last ``losses``, ``gaps``, ``prunes`` and ``proofs`` of the log, and the last entries in its
        ``quarantine``."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenQuestions(Protocol):
    """A function that returns AuditQuestions for the audit log at a URL. It does not connect yet. Raises RqCoreError
    for a bad URL or a driver that is not installed."""

    def __call__(self, audit_url: str, /) -> AuditQuestions: ...


def commands() -> Mapping[str, EntryPoint]:
    """Return the entry points of commands in other packages, by name. The commands are not imported."""
    return _points(COMMANDS)


def history_reader() -> HistoryReader:
    """Return the function that reads a job's history. Raises AuditNotConfigured if no installed package has it."""
    return cast(HistoryReader, _audit("history"))


def endings_opener() -> OpenEndings:
    """Return the function that opens an audit log to read how jobs ended. Raises AuditNotConfigured if no installed
    package has this function."""
    return cast(OpenEndings, _audit("endings"))


def drift() -> Drift:
    """Return the function that compares a queue with its log. Raises AuditNotConfigured if no package has it."""
    return cast(Drift, _audit("drift"))


def mirror_command() -> CompanionCommand:
    """Return the function that returns the command line of a mirror. Raises AuditNotConfigured if no installed package
    has this function."""
    return cast(CompanionCommand, _audit("mirror"))


def relay_command() -> CompanionCommand:
    """Return the function that returns the command line of a relay. Raises AuditNotConfigured if no installed package
    has this function."""
    return cast(CompanionCommand, _audit("relay"))


def inbox_finder() -> FindInInbox:
    """Return the function that finds jobs in an inbox. Raises AuditNotConfigured if no installed package has it."""
    return cast(FindInInbox, _audit("inbox"))


def inbox_reader_opener() -> OpenInboxReader:
    """Return the function that opens an inbox to read its state. Raises AuditNotConfigured if no package has it."""
    return cast(OpenInboxReader, _audit("inbox_reader"))


def inbox_ddl() -> Callable[[str], Sequence[str]]:
    """Return a function that takes the URL of a database, and returns the SQL statements for the tables of an inbox.
    Raises AuditNotConfigured if no installed package has this function."""
    return cast("Callable[[str], Sequence[str]]", _audit("inbox_ddl"))


def reader_opener() -> OpenReader:
    """Return the function that opens an audit log to read its state. Raises AuditNotConfigured if no installed package
    has this function."""
    return cast(OpenReader, _audit("reader"))


def questions_opener() -> OpenQuestions:
    """Return the function that opens an audit log for questions. Raises AuditNotConfigured if no package has it."""
    return cast(OpenQuestions, _audit("questions"))


def copies_opener() -> OpenCopies:
    """Return the function that opens an audit log to copy dead jobs. Raises AuditNotConfigured if no package has it."""
    return cast("OpenCopies", _audit("copies"))


def _audit(name: str) -> object:
    point = _points(AUDIT).get(name)
    if point is None:
        raise AuditNotConfigured(
            f"no installed package provides {name} (entry points {AUDIT}): reinstall rq-core"
        )
    return point.load()


@cache
def _points(group: str) -> Mapping[str, EntryPoint]:
    # Cached: it reads the metadata of every installed package, and ``rq-core --help`` asks for each command.
    # Imported only here: it is slow, and most programs look for no plugin.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


# The answers of an audit log for tools that watch queues; they do not know how the log is kept.
#
# The package that keeps the log implements :class:`AuditReader`; its entry point is found by
# :func:`rq_core.model.plugins.reader_opener`.


@dataclass(frozen=True, slots=True)
class QueueLog:
    """The state of one queue's audit log: numbers of its events, of missing events, and of proven events."""

    queue: str
    events: int
    """Number of events that the log ever had."""
    last_at_ms: int | None
    """Unix ms of the last event, by Redis' clock; None: the log has no event."""
    gaps: int
    """Number of recorded gaps in the numbers of entries."""
    quarantined: int
    """Number of unreadable entries, whose bytes the log keeps."""
    losses: int
    """Number of occasions on which Redis lost events that are in the log."""
    orphaned_events: int
    """Number of events in the log that Redis lost."""
    proven_events: int | None
    """Number of events that the last proof covered. (A proof is a check of the log that found no violation.) None:
    there is no proof."""
    proven_at_ms: int | None
    """Unix ms of the last proof, by the clock of the machine that checked the log. (A proof is a check that found no
    violation.) None: there is no proof."""
    pauses: Mapping[str, int] = field(default_factory=dict)
    """Number of pauses of scopes that began in the last 10 minutes, by cause: failures, handler or operator."""
    last_pauses: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """By scope: the last pause of a recently paused scope, in the form that AuditQuestions.pauses returns."""


class EndedClaims(NamedTuple):
    """Totals over the claims of one task that ended with one outcome."""

    queue: str
    task: str
    """Name of the task; empty: unknown."""
    outcome: str
    """The event that ended the claims, or ``lost``."""
    claims: int
    waited_ms: int
    """Total milliseconds for which the jobs had been ready before these claims."""
    ran_ms: int
    """Total milliseconds for which the handlers of these claims ran."""


@dataclass(frozen=True, slots=True)
class LogOverview:
    """The state of an audit log at one moment."""

    queues: tuple[QueueLog, ...]
    """The logs of the queues, by name."""
    claims: tuple[EndedClaims, ...]
    """The ended claims by queue, task and outcome. They include claims that Redis lost, and claims that have no rows
    any more because `rq-core audit prune` removed them."""


class AuditReader(Protocol):
    """Reads one audit log. Threads may share the object."""

    def look(self) -> LogOverview:
        """Return the state of the log. Raises RqCoreError if the database does not answer."""
        ...

    def mirrored(self, client: Any, /) -> list[str]:
        """Return the names of the queues of ``client`` (its Redis and its prefix) whose log is on, sorted. A log is on
        from the queue's first mirroring until it is switched off, even if Redis does not have the queue now. Raises
        RqCoreError if Redis or the database does not answer, or if the log belongs to another Redis."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# The state of an inbox, for the same tools.


@dataclass(frozen=True, slots=True)
class InboxQueue:
    """The rows of one queue in an inbox: how many wait, are parked, or have become jobs."""

    queue: str
    rows: int
    """Number of rows whose jobs are not in Redis yet."""
    rows_exact: bool
    """True if ``rows`` is exact; if not, it is a lower bound."""
    oldest_ms: int | None
    """Age in ms of the oldest of the ``rows``, by the database's clock; None: there is no row."""
    parked: int
    """Number of parked rows, which the relay could not hand over."""
    parked_exact: bool
    """True if ``parked`` is exact; if not, it is a lower bound."""
    relayed: int
    """Number of rows that became jobs."""
    sent_ms: int | None
    """Ms since the relay chose the rows that it now sends to Redis; None: the relay sends no rows now."""
    damage: str | None = None
    """The reason why these numbers cannot be read; None: they were read."""


@dataclass(frozen=True, slots=True)
class InboxOverview:
    """The state of an inbox (the rows in the user's database that become jobs) at one moment."""

    queues: tuple[InboxQueue, ...]
    queues_left_out: int = 0
    """Number of queues that were not read, since there are too many queues."""


class InboxFinding(NamedTuple):
    """One problem of an inbox."""

    queue: str | None
    """The queue that has the problem; None: the problem concerns all queues."""
    says: str


class InboxReader(Protocol):
    """Reads one inbox: the table whose rows a relay turns into jobs. Threads may share the object."""

    def look(self) -> InboxOverview:
        """Return the state of the inbox. A bounded number of rows is counted, and no lock is taken.

        Raises InboxMissing if the tables are missing, or another RqCoreError if the database does not answer.
        """
        ...

    def examine(self, client: Any, /) -> Sequence[InboxFinding]:
        """Return the problems of the inbox that ``look`` does not show: in the tables, in the database, and in the
        rights of a relay. It is also a problem if the database and the Redis of ``client`` disagree about a relay's
        last call. Raises the same errors as ``look``, or another RqCoreError if Redis does not answer."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenInboxReader(Protocol):
    """A function that returns an InboxReader for the database at a URL. It does not connect yet. Raises RqCoreError for
    a bad URL or a driver that is not installed."""

    def __call__(self, inbox_url: str, /) -> InboxReader: ...
