"""Answers a web page's questions about the log: a job, a moment, events, ended claims, schedules, and findings.

Each answer is a JSON document, like that of ``rq-core audit … --json``. No statement may take longer than STATEMENT_MS.
"""

# ruff: noqa: S608 - statements are joined from words of the model

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import SQLAlchemyError

from sql_audit.errors import HistoryUnknown
from sql_audit.queries import (
    ended_claims,
    event_pages,
    history,
    moments,
    schedules,
    scope_pauses,
    waits,
)
from sql_audit.queries.event_list import EVENTS, last_events
from sql_audit.queries.event_pages import END, EventPage, Place
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import failure
from sql_audit.store.schema.tables import OUTCOMES, one_of

STATEMENT_MS: Final = 1_500
"""Maximum milliseconds that a statement may take."""
EVENTS_MAX: Final = 200
"""Maximum number of events of a job in an answer."""
ROWS_MAX: Final = 50
"""Maximum number of rows of each kind in an answer: the most frequent errors; the last losses, gaps and quarantined
entries."""
HOURS_MAX: Final = 2_000
"""Maximum number of rows in an answer about deaths. There is one row for each task, error and hour; the latest hours
are kept."""
_STEPS: Final = 10_000
"""Number of instructions of SQLite's virtual machine after which the time of a statement is checked."""

_MINUTES: Final = text(
    "SELECT queue, minute_ms, outcome, SUM(claims) AS claims, SUM(waited_ms) AS waited_ms, "
    "MAX(waited_max_ms) AS waited_max_ms, SUM(ran_ms) AS ran_ms FROM claim_minute "
    f"WHERE {one_of('outcome', OUTCOMES)} AND minute_ms >= :since AND minute_ms < :until "
    "AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) GROUP BY 1, 2, 3"
)
_ERRORS: Final = text(
    "SELECT queue, task, outcome, error_type, SUM(claims) AS claims, MAX(minute_ms) AS last_ms FROM claim_minute "
    f"WHERE {one_of('outcome', ('died', 'retried', 'lease_expired'))} AND minute_ms >= :since "
    "AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) GROUP BY 1, 2, 3, 4 "
    f"ORDER BY claims DESC, queue, task LIMIT {ROWS_MAX}"
)
_DEATHS: Final = text(
    "SELECT queue, task, error_type, minute_ms / 3600000 * 3600000 AS hour_ms, SUM(claims) AS deaths, "
    "MAX(minute_ms) AS last_ms FROM claim_minute WHERE outcome = 'died' AND minute_ms >= :since "
    "AND (CAST(:queue AS TEXT) IS NULL OR queue = :queue) GROUP BY 1, 2, 3, 4 "
    f"ORDER BY hour_ms DESC, deaths DESC LIMIT {HOURS_MAX}"
)
_WITH_ID: Final = text(
    f"SELECT queue, task, state, finished_at_ms FROM job WHERE job_id = :job_id ORDER BY queue LIMIT {ROWS_MAX}"
)
_LOSSES: Final = text(
    "SELECT queue, kind, at_ms, events, jobs, passed, epoch FROM mirror_loss "
    f"ORDER BY id DESC LIMIT {ROWS_MAX}"
)
_GAPS: Final = text(
    "SELECT queue, kind, at_ms, missing, old_epoch, old_seq, epoch, seq FROM mirror_epoch "
    f"WHERE kind IN ('gap', 'changed', 'lost') ORDER BY id DESC LIMIT {ROWS_MAX}"
)
_QUARANTINE: Final = text(
    f"SELECT queue, kind, reason, epoch, seq FROM quarantine ORDER BY id DESC LIMIT {ROWS_MAX}"
)
_PROOFS: Final = text(
    "SELECT queue, at_ms, verdict, epoch, seq, events, "
    "EXISTS (SELECT 1 FROM mirror_batch b WHERE b.queue = p.queue AND b.batch = p.batch AND b.head = p.head) OR "
    "EXISTS (SELECT 1 FROM mirror_prune c WHERE c.queue = p.queue AND c.cut_batch >= p.batch) AS of_this_log "
    "FROM mirror_proof p WHERE id IN (SELECT MAX(id) FROM mirror_proof GROUP BY queue) ORDER BY queue"
)
"""A query for the last result of ``audit verify`` of each queue that found no violation, from ``mirror_proof``.
``of_this_log`` is true if the queue's chain has the proven hash, or if a prune removed its batch. Nothing else protects
these rows: see :mod:`sql_audit.proof.record`."""


T = TypeVar("T")


class LogQuestions:
    """Queries one audit database for a web page. Threads may share it."""

    def __init__(self, url: str) -> None:
        """Prepare the queries, without connecting. Raises AuditUrlInvalid, or AuditUnavailable if the driver is not
        installed.
        """
        self._database = Database(url)
        self._checked = False
        bound(self._database.readers, STATEMENT_MS)

    def history(self, job_id: str, queue: str, before: Place | None = None) -> dict[str, Any]:
        """Return the last EVENTS_MAX events of a job, oldest first. With ``before``, return the last ones before this
        position in the log.
        """

        def ask(engine: Engine) -> dict[str, Any]:
            page = event_pages.job_page_before(engine, job_id, queue, before or END, EVENTS_MAX)
            if page.events and not page.older:
                notes = [cut.says for cut in history.cut_short(engine, page.events)]
            elif not page.events and before is None:
                with engine.connect() as connection:
                    notes = [str(history.unknown(connection, job_id, queue))]
            else:
                notes = []
            return _page(page) | {"notes": notes}

        return self._ask(ask)

    def why(self, job_id: str, queue: str) -> dict[str, Any] | None:
        """Return the waits of a job and their causes; None if the log does not have the job."""

        def ask(engine: Engine) -> dict[str, Any] | None:
            try:
                (found,) = waits.why(engine, job_id, queue)
            except HistoryUnknown:
                return None
            return dataclasses.asdict(found)

        return self._ask(ask)

    def at(self, queue: str, at_ms: int) -> dict[str, Any]:
        """Return the state of a queue at a moment (Unix ms)."""

        def ask(engine: Engine) -> dict[str, Any]:
            found = moments.at(engine, queue, at_ms)
            scopes = {
                scope: {"cap": cap, "holders": holders}
                for scope, (cap, holders) in found.scopes.items()
            }
            return dataclasses.asdict(found) | {"scopes": scopes}

        return self._ask(ask)

    def schedule(self, queue: str, name: str, count: int) -> dict[str, Any]:
        """Return the last ``count`` times at which a schedule was due, the schedule's changes in this time, and its
        state.
        """
        return self._ask(
            lambda engine: schedules.document(
                schedules.schedule_history(engine, queue, name, count)
            )
        )

    def tail(self, queues: Sequence[str], lines: int) -> list[dict[str, Any]]:
        """Return the last ``lines`` events of each of these queues, in one list ordered by time."""
        return self._ask(
            lambda engine: [EVENTS.document(e) for e in last_events(engine, queues, lines).rows]
        )

    def events(
        self, queue: str, lines: int, *, before: Place | None = None, after: Place | None = None
    ) -> dict[str, Any]:
        """Return up to ``lines`` events of a queue: the first after the position ``after``, the last before the
        position ``before``, or the last of all.
        """
        if after is not None:
            place = after
            return self._ask(
                lambda engine: _page(event_pages.page_after(engine, queue, place, lines))
            )
        return self._ask(
            lambda engine: _page(event_pages.page_before(engine, queue, before or END, lines))
        )

    def ended(
        self,
        outcomes: Sequence[str],
        queue: str | None,
        *,
        after: tuple[int, str, str, str] | None,
        limit: int,
        **conditions: Any,
    ) -> dict[str, Any]:
        """Return a page of the claims that ended with one of ``outcomes``, newest first. ``conditions`` are fields of
        :class:`ended_claims.Wanted`.

        ``after`` is the position after which the page begins. None: the page begins with the newest claim.
        """
        wanted = ended_claims.Wanted(tuple(outcomes), queue, **conditions)
        place = None if after is None else ended_claims.Place(*after)
        return self._ask(
            lambda engine: _document(
                ended_claims.ended_claims(engine, wanted, after=place, limit=limit)
            )
        )

    def pauses(self, queue: str, scopes: Sequence[str] | None) -> dict[str, dict[str, Any]]:
        """Return the last pause of each of these scopes, by scope (such as ``tenant=acme``). With ``scopes=None``,
        return the last pauses of the queue's scopes that were paused most recently.
        """
        now_ms = round(time.time() * 1000)

        def ask(engine: Engine) -> dict[str, dict[str, Any]]:
            if scopes is not None:
                found = scope_pauses.last_pauses(engine, queue, scopes, now_ms)
            else:
                with engine.connect() as connection:
                    found = scope_pauses.recent_pauses(connection, queue, now_ms)
            return {scope: _document(each) for scope, each in found.items()}

        return self._ask(ask)

    def with_id(self, job_id: str) -> list[dict[str, Any]]:
        """Return the jobs of all queues that have this id."""
        return self._ask(lambda engine: _rows(engine, _WITH_ID, {"job_id": job_id}))

    def last_ticks(self, queue: str) -> list[dict[str, Any]]:
        """Return the last ``ticked`` event of each schedule of a queue: when the schedule was due, or an operator asked
        for a run, and the outcome.
        """
        return self._ask(lambda engine: event_pages.last_ticks(engine, queue))

    def minutes(self, since_ms: int, until_ms: int, queue: str | None) -> list[dict[str, Any]]:
        """Return the number of claims that ended in each minute, by queue and outcome.

        Minutes from ``since_ms`` on and before ``until_ms`` (Unix ms) are counted. ``queue`` None means all queues.
        """
        asked = {"since": since_ms, "until": until_ms, "queue": queue}
        return self._ask(lambda engine: _rows(engine, _MINUTES, asked))

    def errors(self, since_ms: int, queue: str | None) -> list[dict[str, Any]]:
        """Return the errors of claims that ended since ``since_ms`` (Unix ms), by task and outcome, the most frequent
        first.
        """
        asked = {"since": since_ms, "queue": queue}
        return self._ask(lambda engine: _rows(engine, _ERRORS, asked))

    def deaths(self, since_ms: int, queue: str | None) -> list[dict[str, Any]]:
        """Return the number of claims with the outcome ``died`` since ``since_ms`` (Unix ms), by task, error and hour,
        latest hour first.

        Jobs that died because of a lost worker or a deadline are not counted.
        """
        asked = {"since": since_ms, "queue": queue}
        return self._ask(lambda engine: _rows(engine, _DEATHS, asked))

    def findings(self) -> dict[str, Any]:
        """Return the recorded losses, gaps, prunes, quarantined entries and proofs of the log."""

        def ask(engine: Engine) -> dict[str, Any]:
            with engine.connect() as connection:
                prunes = [
                    _document(cut) | {"says": cut.says} for cut in history.pruned_to(connection)
                ]
            return {
                "losses": _rows(engine, _LOSSES),
                "gaps": _rows(engine, _GAPS),
                "quarantine": _rows(engine, _QUARANTINE),
                "proofs": _rows(engine, _PROOFS),
                "prunes": prunes,
            }

        return self._ask(ask)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def _ask(self, question: Callable[[Engine], T]) -> T:
        try:
            if not self._checked:
                migrate.check_current(self._database)
                self._checked = True
            return question(self._database.readers)
        except SQLAlchemyError as error:
            raise failure(self._database.url, error) from error


def bound(engine: Engine, most_ms: int) -> None:
    """Limit the time of each statement of an engine to ``most_ms``. A longer statement raises an OperationalError."""
    if engine.dialect.name == "postgresql":

        @event.listens_for(engine, "begin")
        def of_transaction(connection: Connection) -> None:
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {most_ms:d}")

        return

    @event.listens_for(engine, "connect")
    def of_connection(connection: Any, _record: Any) -> None:
        # A file that another process has locked.
        connection.execute(f"PRAGMA busy_timeout = {most_ms:d}")

    @event.listens_for(engine, "before_cursor_execute")
    def of_statement(connection: Connection, *_: Any) -> None:
        ends = time.monotonic() + most_ms / 1000
        driver: Any = connection.connection.driver_connection
        driver.set_progress_handler(lambda: time.monotonic() > ends, _STEPS)


def _page(page: EventPage) -> dict[str, Any]:
    return {
        "events": list(map(_document, page.events)),
        "older": page.older,
        "newer": page.newer,
    }


def _document(row: Any) -> dict[str, Any]:
    return dataclasses.asdict(row)


def _rows(
    engine: Engine, statement: Any, asked: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Run a statement, and return its rows as dicts.

    PostgreSQL's sums of bigints are decimals, which JSON lacks; they become ints.
    """
    with engine.connect() as connection:
        found = connection.execute(statement, dict(asked or {})).mappings()
        return [
            {name: int(v) if isinstance(v, Decimal) else v for name, v in row.items()}
            for row in found
        ]


def open_questions(url: str) -> LogQuestions:
    """Return the LogQuestions of the database at ``url``, without connecting.

    rq_core finds this function by an entry point. Raises AuditUrlInvalid, or AuditUnavailable if the driver is not
    installed.
    """
    return LogQuestions(url)
