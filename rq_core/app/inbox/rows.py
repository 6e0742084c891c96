"""Rows of jobs, and the statements that insert and delete them, for PostgreSQL and SQLite.

All rows of one INSERT are one value, a JSON array. So the statement's text is always the same, and a driver's limit on
the number of values is never reached.
"""

# ruff: noqa: S608 - statements are joined from texts of this module, never from values

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rq_core.app.limits.lane_assignment import key_texts
from rq_core.errors import InboxIdsUsed, InvalidOption
from rq_core.model.job import NewJob
from rq_core.model.packed_job import pack

if TYPE_CHECKING:
    from rq_core.app.options import EnqueueOptions

INSERT_ROWS: Final = 5_000
"""Maximum number of rows in one INSERT."""
INSERT_BYTES: Final = 8 * 1024 * 1024
"""Number of characters of arguments after which an INSERT takes no further row."""

_COLUMNS: Final = ("queue", "job_id", "task", "args", "options", "packed")
_REJECTS: Final = ("reject|", "most|")


class Row(NamedTuple):
    """A row of the table ``rqc_inbox``, as a producer inserts it."""

    queue: str
    job_id: str
    task: str
    args: str
    options: str | None
    packed: str | None


class Statement(NamedTuple):
    """A SQL statement with its values. Each ``?`` in the text is a placeholder for a value.

    The answer to a statement is the number of rows that it returned; for a statement without rows, the number that it
    changed.
    """

    text: str
    values: tuple[str, ...]


Statements = Generator[Statement, int, Any]
"""A generator of statements. Its caller runs each statement and sends the answer back. The generator returns the
result."""


def row_of(job: NewJob) -> Row:
    """Return the inbox row for a job. Raises InvalidOption for a job that the queue might reject after the commit."""
    if any(rule.startswith(_REJECTS) for rule in job.full.split(" ")):
        raise InvalidOption.of(
            "caps",
            job.profile.task,
            "must not reject, or limit the jobs that wait (max_waiting), for a job that is enqueued within a"
            " transaction: when the queue refused the job, its producer would have gone on. Let the cap say"
            ' on_full="wait" or "discard", or enqueue the job after the commit',
        )
    if '"unique":"reject"' in job.ties:
        raise InvalidOption.of(
            "on_duplicate",
            "reject",
            "does not go with a job that is enqueued within a transaction: when the queue refused the job, its"
            ' producer would have gone on. Say "keep" or "replace", or enqueue the job after the commit',
        )
    return Row(job.queue, job.id, job.profile.task, job.args_json, None, pack(job))


def row_by_name(job: NewJob, options: EnqueueOptions, keys: Mapping[str, str] | None) -> Row:
    """Return the inbox row for a job whose task's code is not in this process.

    The relay, which hands the row over to Redis, applies the options and caps that workers registered for the task.
    Raises InvalidOption unless ``keys`` is a mapping of texts.
    """
    said: dict[str, Any] = {
        name: _plain(value)
        for name, value in options.items()
        if value is not None and name not in ("id", "idempotency_key", "headers", "trace")
    }
    if job.headers_json:
        said["headers"] = json.loads(job.headers_json)
    if options.get("idempotency_key") is not None:
        # The key has made the id already, and its window holds unless another is given.
        said.setdefault("remember", _window_s())
    if keys:
        said["keys"] = dict(key_texts(keys))
    text = json.dumps(said, separators=(",", ":")) if said else None
    return Row(job.queue, job.id, job.profile.task, job.args_json, text, None)


def _window_s() -> float:
    from rq_core.model.idempotency import WINDOW_MS

    return WINDOW_MS / 1000


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return dict(value)
    return value.isoformat() if isinstance(value, datetime) else value


_INSERT: Final = f"INSERT INTO rqc_inbox ({', '.join(_COLUMNS)}) SELECT"
# Without WHERE, SQLite takes ON for that of a join. An id that is in the inbox of its queue already is
# a duplicate. To name the columns would need the right to read them.
_UNLESS_THERE: Final = "WHERE true ON CONFLICT DO NOTHING"
# Some programs let asyncpg encode JSON itself, so the value is text.
_GIVEN: Final = (
    "FROM json_to_recordset(CAST(CAST(? AS text) AS json))"
    f" AS r ({', '.join(f'{name} text' for name in _COLUMNS)})"
)
_INSERTS: Final = {
    # The statement returns one row for each row that it did not insert.
    "postgresql": (
        f"WITH made AS ({_INSERT} {', '.join(_COLUMNS)} {_GIVEN} {_UNLESS_THERE} RETURNING 1)"
        " SELECT generate_series((SELECT count(*) FROM made) + 1, CAST(CAST(? AS text) AS bigint))"
    ),
    "sqlite": (
        f"""{_INSERT} {", ".join(f"json_extract(value, '$.{name}')" for name in _COLUMNS)}"""
        f" FROM json_each(?) {_UNLESS_THERE}"
    ),
}
DIALECTS: Final = tuple(_INSERTS)
"""The databases that can have an inbox, by their names in SQLAlchemy and Django."""


_MAY_LOOK: Final = (
    "SELECT 1 WHERE has_column_privilege('rqc_inbox', 'queue', 'SELECT')"
    " AND has_column_privilege('rqc_inbox', 'job_id', 'SELECT')"
)
_LACKING: Final = (
    f"SELECT 1 {_GIVEN} WHERE NOT EXISTS"
    " (SELECT 1 FROM rqc_inbox i WHERE i.queue = r.queue AND i.job_id = r.job_id)"
)
"""A query that takes the same rows as the INSERT. It returns one row for each given row whose job is not in the
inbox."""
TRIES: Final = 3
"""Number of INSERTs after which InboxIdsUsed is raised. A repeated INSERT may succeed, since it takes other numbers of
the sequence. It may also succeed because a relay, the process that reads the inbox, has meanwhile removed the row that
had the same queue and job id."""


def inserts(dialect: str, rows: Iterable[Row]) -> Statements:
    """Yield the statements that insert rows, as few as possible. Raises InboxIdsUsed."""
    insert = _insert_sure if dialect == "postgresql" else _insert
    some: list[dict[str, str | None]] = []
    size = 0
    for row in rows:
        some.append(row._asdict())
        size += len(row.args)
        if len(some) >= INSERT_ROWS or size >= INSERT_BYTES:
            yield from insert(some)
            some, size = [], 0
    if some:
        yield from insert(some)


def _insert(rows: Sequence[Mapping[str, str | None]]) -> Statements:
    yield Statement(_INSERTS["sqlite"], (json.dumps(rows, ensure_ascii=False),))


def _insert_sure(rows: Sequence[Mapping[str, str | None]]) -> Statements:
    """Insert rows on PostgreSQL. Raises InboxIdsUsed if the database drops rows that are no duplicates.

    If the sequence of the ids is behind the table, a new row gets the id of an older row. ON CONFLICT then drops the
    new row. A user who may not read the inbox cannot notice this.
    """
    given = json.dumps(rows, ensure_ascii=False)
    insert = Statement(_INSERTS["postgresql"], (given, str(len(rows))))
    if not (yield insert) or not (yield Statement(_MAY_LOOK, ())):
        return
    for _ in range(TRIES - 1):
        if not (yield Statement(_LACKING, (given,))):
            return
        yield insert
    lacking = yield Statement(_LACKING, (given,))
    if lacking:
        raise InboxIdsUsed(rows=lacking)


_ROW: Final = "FROM rqc_inbox WHERE queue = ? AND job_id = ?"
_NOT_SENT: Final = (
    " AND NOT EXISTS (SELECT 1 FROM rqc_relay r"
    " WHERE r.queue = rqc_inbox.queue AND r.ids IS NOT NULL AND {among})"
)
_FREE: Final = {
    "postgresql": _ROW + _NOT_SENT.format(among="CAST(r.ids AS jsonb) @> to_jsonb(rqc_inbox.id)"),
    "sqlite": _ROW + _NOT_SENT.format(among="rqc_inbox.id IN (SELECT value FROM json_each(r.ids))"),
}
"""The end of a statement that deletes or locks a job's row, by the kind of the database. Its condition leaves out a row
that a relay is already handing over to Redis."""
_SEES_COMMITS: Final = (
    "SELECT 1 WHERE current_setting('transaction_isolation')"
    " IN ('read committed', 'read uncommitted')"
)


def delete_row(dialect: str, queue: str, job_id: str) -> Statements:
    """Delete a job's row from the inbox, unless a relay is already handing the row over to Redis. Return ``cancelled``,
    ``relaying`` or ``gone``.

    ``relaying``: a relay has taken the row into a batch. ``gone``: there is no row.

    On PostgreSQL, a first statement locks the row; the statement that deletes the row then reads the relays' batches. A
    relay that took the row before the lock has committed its batch by then. A later relay does not take a locked row.
    """
    where, values = _FREE[dialect], (queue, job_id)
    if dialect == "postgresql":
        if not (yield Statement(_SEES_COMMITS, ())):
            must = "must have a transaction with the isolation level READ COMMITTED, to cancel a job in it"
            raise InvalidOption.of("connection", "within", must)
        yield Statement(f"SELECT 1 {where} FOR UPDATE OF rqc_inbox", values)
        where += " RETURNING 1"
    if (yield Statement(f"DELETE {where}", values)):
        return "cancelled"
    return "relaying" if (yield Statement(f"SELECT 1 {_ROW}", values)) else "gone"


def placeholders(text: str, mark: str) -> str:
    """Replace each ``?`` in a statement by a driver's placeholder ``mark``. The mark ``$`` gives numbered placeholders:
    ``$1``, ``$2``, …."""
    if mark != "$":
        return text.replace("?", mark)
    first, *others = text.split("?")
    return first + "".join(f"${at}{part}" for at, part in enumerate(others, 1))
