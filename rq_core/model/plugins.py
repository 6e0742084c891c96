"""Entry points. rq_core does not import other packages directly; by their entry points it finds the packages' commands
and audit logs.

``rq_core.commands``: commands of ``rq-core``, each under its name. ``rq_core.audit``: functions that use a database:
``history``, ``endings``, ``drift``, ``mirror``, ``reader``, ``questions`` and ``copies`` of an audit log; ``relay``,
``inbox``, ``inbox_reader`` and ``inbox_ddl`` of an inbox. Each has a function below that returns it.

A command is a click command whose module is quick to import: ``rq-core --help`` imports it for its first sentence.
``pyproject.toml`` declares the entry points of sql_audit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    """A function that returns a job's events, oldest first; without a queue, from all queues. Each event has at least
    ``type`` (a machine.Event as text), ``queue`` and ``at_ms`` (Unix ms)."""

    def __call__(self, audit_url: str, job_id: str, queue: str | None, /) -> list[Any]: ...


class EndingsReader(Protocol):
    """Reads from one audit log how jobs ended."""

    def read(
        self, queue: str, jobs: Mapping[str, tuple[int, int]], /
    ) -> Mapping[str, Outcome[Any]]:
        """Return the outcomes, by id, of jobs that have left Redis. ``jobs`` has, for each id, the epoch and number of
        an outbox entry. A job is left out of the result while the log does not have that entry. Raises RqCoreError if
        the database does not answer."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenEndings(Protocol):
    """A function that returns an EndingsReader for a URL. Raises RqCoreError for a bad URL or a missing driver."""

    def __call__(self, audit_url: str, /) -> EndingsReader: ...


class Drift(Protocol):
    """A function that compares a queue in Redis with SQL, and returns an Evidence of rq_core.doctor.

    ``client`` is a Client. Raises RqCoreError if Redis or the database does not answer.
    """

    def __call__(self, audit_url: str, client: Any, queue: str, /) -> Any: ...


class CompanionCommand(Protocol):
    """A function that returns the command line of a process beside the workers, and the variables to add to its
    environment. ``database`` is the URL of the database that the process uses. The process ends when its standard input
    is closed, or on SIGTERM. A mirror says that it is ready (lib/readiness) once it has found that the database is the
    log of this Redis. Before it ends, it finishes its work: a mirror copies the events that are left.

    ``made`` are queues that were created just now; a mirror begins with these queues. The URLs are passed in the
    environment, since every user of a machine can read every command line, and URLs have passwords.
    """

    def __call__(
        self, redis_url: str, prefix: str, database: str, made: Sequence[str] = (), /
    ) -> tuple[list[str], dict[str, str]]: ...


class FindInInbox(Protocol):
    """A function that returns where the rows of jobs of a queue are, by the jobs' ids: ``inbox`` or ``parked``. Jobs
    without a row are left out. Raises RqCoreError if the database does not answer."""

    def __call__(self, inbox_url: str, queue: str, ids: Sequence[str], /) -> dict[str, str]: ...


class OpenReader(Protocol):
    """A function that returns an AuditReader for a URL, without connecting to the database. Raises RqCoreError for a
    bad URL and for a driver that is not installed."""

    def __call__(self, audit_url: str, /) -> AuditReader: ...


class AuditQuestions(Protocol):
    """Answers the questions of a web page from one audit log. Threads may share the object.

    Answers are documents in the form in which ``rq-core audit … --json`` prints them. Times are Unix ms. Each method
    raises RqCoreError if the database does not answer in time.
    """

    def history(
        self, job_id: str, queue: str, /, before: tuple[int, int, int] | None = None
    ) -> dict[str, Any]:
        """Return a document whose ``events`` are the last events of a job, oldest first; with ``before``, the last
        events before this place (epoch, seq, ordinal).

        ``older`` and ``newer``: whether the log has events before and after them. ``notes`` say what is missing. An
        unknown job has no events.
        """
        ...

    def why(self, job_id: str, queue: str, /) -> dict[str, Any] | None:
        """Return the ``waits`` and ``pauses`` of a job, and its ``state``; None if the log does not know the job."""
        ...

    def at(self, queue: str, at_ms: int, /) -> dict[str, Any]:
        """Return the jobs that were ``running`` and ``waiting`` in a queue at a past moment, and the ``scopes`` of the
        queue at that moment."""
        ...

    def schedule(self, queue: str, name: str, count: int, /) -> dict[str, Any]:
        """Return the last ``ticks`` (instants and their outcomes) of a schedule, the ``changes`` of the schedule since
        the first of these ticks, and the schedule's present state.

        ``says`` is the present state according to the log, as a sentence.
        """
        ...

    def tail(self, queues: Sequence[str], lines: int, /) -> list[dict[str, Any]]:
        """Return the last events of these queues, at most ``lines`` of each queue, in the order of their times."""
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
        """Return a document whose ``events`` are the last events of a queue, oldest first; with ``before`` or
        ``after``, the events next to this place (epoch, seq, ordinal).

        ``older`` and ``newer``: whether the log has events before and after them.
        """
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
        """Return a document whose ``rows`` are claims that ended with one of these outcomes, newest first, at most
        ``limit``.

        ``looked`` is the number of claims that were read. ``next`` is the value of ``after`` for the next page. Its
        first part is a time (Unix ms); all claims that ended after this time were read. A ``next`` of None means that
        there is no further page. An empty condition excludes no claim. A caller that lists successes must pass a queue.
        """
        ...

    def with_id(self, job_id: str, /) -> list[dict[str, Any]]:
        """Return, for each job with this id in any queue, its ``queue``, ``task``, ``state`` and ``finished_at_ms``."""
        ...

    def last_ticks(self, queue: str, /) -> list[dict[str, Any]]:
        """Return the last instant of each schedule of a queue, with the columns of the view ``schedule_tick``."""
        ...

    def minutes(self, since_ms: int, until_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return how many claims ended in each minute, by ``outcome``. If no ``queue`` is given, claims of all queues
        count."""
        ...

    def errors(self, since_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return the errors with which claims ended since ``since_ms``, by task, the most frequent first."""
        ...

    def deaths(self, since_ms: int, queue: str | None, /) -> list[dict[str, Any]]:
        """Return how many ``died`` events came since ``since_ms``, by task, error and ``hour_ms``, last hour first."""
        ...

    def findings(self) -> dict[str, Any]:
        """Return the last ``losses``, ``gaps``, ``prunes``, entries in ``quarantine``, and ``proofs``."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenQuestions(Protocol):
    """A function that returns the AuditQuestions of the audit log at a URL, without connecting.

    Raises RqCoreError for a bad URL and for a driver that is not installed.
    """

    def __call__(self, audit_url: str, /) -> AuditQuestions: ...


def commands() -> Mapping[str, EntryPoint]:
    """Return the commands of other packages, by name, without importing them."""
    return _points(COMMANDS)


def history_reader() -> HistoryReader:
    """Return the function that reads a job's history. Raises AuditNotConfigured if no installed package has this
    function."""
    return cast(HistoryReader, _audit("history"))


def endings_opener() -> OpenEndings:
    """Return the function that opens an audit log to read how jobs ended. Raises AuditNotConfigured if no installed
    package has this function."""
    return cast(OpenEndings, _audit("endings"))


def drift() -> Drift:
    """Return the function that compares a queue with SQL. Raises AuditNotConfigured if no installed package has this
    function."""
    return cast(Drift, _audit("drift"))


def mirror_command() -> CompanionCommand:
    """Return the function that returns a mirror's command line. Raises AuditNotConfigured if no installed package has
    this function."""
    return cast(CompanionCommand, _audit("mirror"))


def relay_command() -> CompanionCommand:
    """Return the function that returns the command line of an inbox' relay. Raises AuditNotConfigured if no installed
    package has this function."""
    return cast(CompanionCommand, _audit("relay"))


def inbox_finder() -> FindInInbox:
    """Return the function that finds jobs in an inbox. Raises AuditNotConfigured if no installed package has this
    function."""
    return cast(FindInInbox, _audit("inbox"))


def inbox_reader_opener() -> OpenInboxReader:
    """Return the function that opens an inbox to read its state. Raises AuditNotConfigured if no installed package has
    this function."""
    return cast(OpenInboxReader, _audit("inbox_reader"))


def inbox_ddl() -> Callable[[str], Sequence[str]]:
    """Return the function that returns the statements for the tables of an inbox, for a URL."""
    return cast("Callable[[str], Sequence[str]]", _audit("inbox_ddl"))


def reader_opener() -> OpenReader:
    """Return the function that opens an audit log to read its state. Raises AuditNotConfigured if no installed package
    has this function."""
    return cast(OpenReader, _audit("reader"))


def questions_opener() -> OpenQuestions:
    """Return the function that opens an audit log for a page's questions.

    Raises AuditNotConfigured if no installed package has this function.
    """
    return cast(OpenQuestions, _audit("questions"))


def copies_opener() -> OpenCopies:
    """Return the function that opens an audit log for copies of jobs. Raises AuditNotConfigured if no installed package
    has this function."""
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
    """The state of one queue's log: how many events it has, how many are missing, and how many are proven."""

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
    """Number of events that the last proof covered; None: the log was never proven."""
    proven_at_ms: int | None
    """Unix ms of the last proof, by the clock of the machine that made it; None: the log was never proven."""


class EndedClaims(NamedTuple):
    """Totals over all claims of one task that ended with one outcome."""

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
    """Reads one audit log. Threads may share it."""

    def look(self) -> LogOverview:
        """Return the state of the log. Raises RqCoreError if the database does not answer."""
        ...

    def mirrored(self, client: Any, /) -> list[str]:
        """Return the sorted names of the queues whose log is on, for the Redis and the prefix of a client. The log of a
        queue is on if the queue was mirrored and its log was not switched off. Redis need not have the queue now.
        Raises RqCoreError if Redis or the database does not answer, or the log belongs to another Redis."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# The state of an inbox, for the same tools.


@dataclass(frozen=True, slots=True)
class InboxQueue:
    """The rows of one queue in an inbox."""

    queue: str
    rows: int
    """Number of rows whose jobs are not in Redis yet."""
    rows_exact: bool
    """True if ``rows`` is exact; if not, it is a lower bound."""
    oldest_ms: int | None
    """Age of the oldest of these rows in ms, by the database's clock; None: there is no row."""
    parked: int
    """Number of parked rows, which the relay could not hand over."""
    parked_exact: bool
    """True if ``parked`` is exact; if not, it is a lower bound."""
    relayed: int
    """Number of rows that became jobs."""
    sent_ms: int | None
    """Ms since a relay chose the rows that it is sending to Redis now; None: no rows are being sent."""
    damage: str | None = None
    """The reason why these numbers cannot be read; None: they were read."""


@dataclass(frozen=True, slots=True)
class InboxOverview:
    """The state of an inbox at one moment."""

    queues: tuple[InboxQueue, ...]
    queues_left_out: int = 0
    """Number of queues that were not read, since there are too many queues."""


class InboxFinding(NamedTuple):
    """One problem of an inbox."""

    queue: str | None
    """The queue that has the problem; None: the problem concerns all queues."""
    says: str


class InboxReader(Protocol):
    """Reads one inbox. Threads may share it."""

    def look(self) -> InboxOverview:
        """Return the state of the inbox. The method counts a bounded number of rows, and takes no lock.

        Raises InboxMissing if the tables are missing, and another RqCoreError if the database does not answer.
        """
        ...

    def examine(self, client: Any, /) -> Sequence[InboxFinding]:
        """Return the problems of the inbox that ``look`` does not show. They concern its tables, its place, the rights
        of a relay, and differences between the rows that it sent last and the Redis of a client. Raises the same errors
        as ``look``."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


class OpenInboxReader(Protocol):
    """A function that returns the InboxReader of the database at a URL, without connecting.

    Raises RqCoreError for a bad URL and for a driver that is not installed.
    """

    def __call__(self, inbox_url: str, /) -> InboxReader: ...
