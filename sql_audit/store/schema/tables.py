"""The tables of the audit log, their CHECK constraints and indexes.

The words in the CHECKs come from :mod:`rq_core.model.table.machine`. Columns named ``*_ms`` are integers: times are
Unix milliseconds, durations are milliseconds. The times of events, jobs and claims come from the events (Redis' clock).

``job_event`` is stored in the order of its primary key. On PostgreSQL, it is partitioned by the month of ``at_ms``
(:mod:`sql_audit.store.partitions`). So its primary key must contain ``at_ms``, and cannot prevent that a number is used
twice. The mirror checks this before each batch, with the cursor locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
)
from sqlalchemy.schema import SchemaItem

from rq_core.model.table.event_fields import QUEUE_EVENT_FIELDS
from rq_core.model.table.fields import COUNTERS, FIELDS, Field, FieldKind
from rq_core.model.table.machine import (
    CLAIMED_STATES,
    TRANSITIONS,
    Event,
    Priority,
    State,
)
from sql_audit.store.schema.duration_classes import RAN, SPAN

metadata = MetaData()

QUARANTINED: Final = "quarantined"
"""The type of an event's row if the event itself could not be decoded or stored."""

TERMINAL_STATES: Final = tuple(dict.fromkeys(str(t.event) for t in TRANSITIONS if t.target is None))
"""The states of jobs that left Redis. Each state is named after the event that ended the job."""

GONE: Final = "gone"
"""The state of a job that Redis no longer has, although no event in the log ended it."""

LOST: Final = "lost"
"""The state of a job that Redis has lost; also the outcome of a claim that no event ended."""

JOB_STATES: Final = (*(str(s) for s in State), *TERMINAL_STATES, GONE, LOST)

OUTCOMES: Final = (
    *dict.fromkeys(
        str(t.event)
        for t in TRANSITIONS
        if t.source in CLAIMED_STATES and t.target not in CLAIMED_STATES
    ),
    LOST,
)
"""The possible outcomes of a claim: the events that end a claim, and ``lost``."""

QUARANTINE_KINDS: Final = ("undecodable", "sanitised", "refused", "conflict")
PRUNE_KINDS: Final = ("begun", "done")
PROOF_VERDICTS: Final = ("holds", "unknown")
EPOCH_KINDS: Final = ("started", "joined", "gap", "changed", "lost")
LOSS_KINDS: Final = ("orphaned", "forgotten", "restated")


def one_of(column: str, words: Iterable[str]) -> str:
    """Return the SQL condition that ``column`` has one of ``words``."""
    return f"{column} IN ({', '.join(repr(str(word)) for word in words)})"


def _words_check(name: str, column: str, words: Sequence[str]) -> tuple[CheckConstraint, ...]:
    """Return the CHECK that a column has one of ``words``, in a form for each dialect.

    For an IN list, SQLite builds an index for every row, which takes half of the time of an INSERT. So SQLite gets a
    chain of ORs.
    """
    chain = " OR ".join(f"{column} = {str(word)!r}" for word in words)
    return (
        CheckConstraint(chain, name=name).ddl_if(dialect="sqlite"),
        CheckConstraint(one_of(column, words), name=name).ddl_if(dialect="postgresql"),
    )


def _column(name: str, kind: str, *, null: bool) -> Column[Any]:
    if kind == "serial":
        return Column(name, Integer, primary_key=True, autoincrement=True)
    # Without autoincrement=False, SQLAlchemy would make a serial of a BIGINT in a composite key.
    return Column(name, BigInteger if kind else Text, nullable=null, autoincrement=False)


def _columns(words: str) -> Iterator[Column[Any]]:
    """Yield the columns described in ``words``.

    ``name`` is a text, ``name:int`` a number, ``name:serial`` a numbered key. A ``!`` at the end means NOT NULL.
    """
    for word in words.split():
        name, _, kind = word.rstrip("!").partition(":")
        yield _column(name, kind, null=not word.endswith("!"))


def _table(name: str, columns: str, *others: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *_columns(columns), *others, **options)


def _of_field(field: Field) -> Column[Any]:
    """Return the column for a job's field. Counters are NOT NULL; any other field may be null, because it may be
    unknown.
    """
    kind = "int" if field.kind is FieldKind.NUMBER else ""
    return _column(field.name, kind, null=field.name not in COUNTERS)


audit_meta = Table(
    "audit_meta",
    metadata,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    *_columns("audit_id! chain_id place"),
    CheckConstraint("one = 1", name="audit_meta_one_row"),
)
"""One row: ``audit_id`` is the random id of this database, which the mirror presents to Redis with every trim;
``chain_id`` is the original's id in a forked copy; ``place`` is where the database is (see database_identity)."""

TICK_NAME: Final = "CASE WHEN LENGTH(job_id) > 19 THEN SUBSTR(job_id, 6, LENGTH(job_id) - 19) END"
"""An SQL expression: the schedule's name in the id of a tick, ``tick-NAME-INSTANT`` (the instant has 13 digits). The
index ``job_event_tick`` has this expression."""

IS_PAUSE: Final = "({0}type = 'scope_paused' OR {0}type = 'pause_changed')"
"""An SQL condition: an event begins or ends the pause of a scope. The condition has a place for the table's name and a
dot. The indexes of pauses have this condition. SQLite would build an index of an IN list for every row."""

_AFTER_NAME: Final = """SUBSTR({0}detail, INSTR({0}detail, '"scope":"') + 9)"""
SCOPE_OF_PAUSE: Final = f"SUBSTR({_AFTER_NAME}, 1, ABS(INSTR({_AFTER_NAME}, '\"') - 1))"
"""An SQL expression for the scope of an event that begins or ends a pause, from the event's detail. The expression has
a place for the table's name and a dot. It has a value for any text, so no event can stop the mirror. Quotation marks in
the values of other fields do not mislead it, because JSON escapes them. The index ``job_event_pause_scope`` has this
expression. See :func:`in_dialect`."""

job_event = _table(
    "job_event",
    "queue! epoch:int! seq:int! ordinal:int! type! at_ms:int! job_id claim:int worker task detail",
    # PostgreSQL's key also has at_ms, see ddl.POSTGRES_EVENTS.
    PrimaryKeyConstraint("queue", "epoch", "seq", "ordinal", name="job_event_pkey").ddl_if(
        dialect="sqlite"
    ),
    *_words_check("job_event_type", "type", (*Event, QUARANTINED)),
    CheckConstraint(
        "epoch >= 0 AND seq >= 0 AND ordinal >= 0 AND at_ms >= 0", name="job_event_numbers"
    ),
    CheckConstraint(
        f"job_id IS NOT NULL OR {one_of('type', (*QUEUE_EVENT_FIELDS, QUARANTINED))}",
        name="job_event_of_job",
    ),
    Index("job_event_job", "job_id", "queue", "epoch", "seq"),
    sqlite_with_rowid=False,
    postgresql_partition_by="RANGE (at_ms)",
)
"""All events, append-only, in the order in which they happened.

``worker`` is the actor that made the call: a worker, a producer or a person. ``claim`` and ``task`` come from the job
if the event itself does not have them. ``detail`` is a JSON object of the event's other fields.
"""

job = _table(
    "job",
    "job_id! queue! state!",
    *map(_of_field, FIELDS),
    Column("complete", SmallInteger, nullable=False),
    *_columns("last_epoch:int! last_seq:int!"),
    PrimaryKeyConstraint("job_id", "queue", name="job_pkey"),
    *_words_check("job_state", "state", JOB_STATES),
    *_words_check("job_priority", "priority", tuple(Priority)),
    CheckConstraint("complete IN (0, 1)", name="job_complete"),
    sqlite_with_rowid=False,
)
"""All jobs, in the state after their surviving events. ``complete`` is 0 if the log does not have the job's beginning.

State ``lost``: Redis had the job and forgot it; ``reason`` is the job's state before. State ``gone``: a complete
baseline did not name the job, and no event ended it.

The table has a column for each field of a job; :mod:`rq_core.model.table.fields` explains the traits. ``lane`` is the
lane in which the job waits for its scopes, or waited last: priority and scopes, joined by ``+``.
"""

job_attempt = _table(
    "job_attempt",
    "job_id! queue! fence! claim:int task worker ready_at_ms:int claimed_at_ms:int ended_at_ms:int waited_ms:int "
    "ran_ms:int outcome error_type error_message scopes",
    PrimaryKeyConstraint("job_id", "queue", "fence", name="job_attempt_pkey"),
    *_words_check("job_attempt_outcome", "outcome", OUTCOMES),
    sqlite_with_rowid=False,
)
"""All claims: the worker, the wait before the claim, the claim's duration, and its outcome (null if the claim is in
force).

The key has the fence, not the number of the claim, since the numbers begin at 1 again if a job's id is used a second
time. ``scopes`` are the claim's scopes with the limits in force, from its event: a JSON array of ``[scope, cap]`` and
``[rate's scope, limit, window_ms, burst]``. If the job has costs, a rate of a unit has the cost as a fifth value.
"""

claim_minute = _table(
    "claim_minute",
    "outcome! minute_ms:int! queue! task! worker! error_type! claims:int! waited_ms:int! waited_max_ms:int! "
    "ran_ms:int! ran_max_ms:int!",
    PrimaryKeyConstraint(
        "outcome", "minute_ms", "queue", "task", "worker", "error_type", name="claim_minute_pkey"
    ),
    CheckConstraint(
        "minute_ms >= 0 AND minute_ms % 60000 = 0 AND claims > 0", name="claim_minute_counts"
    ),
    sqlite_with_rowid=False,
)
"""The numbers of ended claims by minute, outcome, queue, task, worker and error type (an empty text if unknown, or if
there was no error). Queries about all claims read these few rows.

Claims are counted in the transaction in which they end, and again after a loss. A prune does not change this table: the
table still counts the claims of removed jobs.
"""

mirror_cursor = _table(
    "mirror_cursor",
    "queue! epoch:int seq:int at_ms:int anchor batch:int! head! entries:int! events:int! bytes:int! "
    "quarantined:int! gaps:int! trim_jobs:int! trim_bytes:int! prefix stamp",
    PrimaryKeyConstraint("queue", name="mirror_cursor_pkey"),
    CheckConstraint("(epoch IS NULL) = (seq IS NULL)", name="mirror_cursor_entry"),
)
"""The mirror's position in each queue: the last entry of the last batch, and the sums of all batches.

``anchor`` is the SHA-256 of the last entry, which the next read must find unchanged. ``trim_jobs`` and ``trim_bytes``
are taken off the backlog when Redis is trimmed after the last batch. ``prefix`` and ``stamp`` are the queue's source:
the prefix of its keys, and the stamp in its ``meta`` in Redis. If the stamp is null, the next Redis that attaches the
queue under this prefix becomes the queue's source; if the prefix is null, any Redis may become the source
(:mod:`sql_audit.mirror.source_registry`)."""

mirror_epoch = _table(
    "mirror_epoch",
    "id:serial queue! batch:int! epoch:int! seq:int! kind! at_ms:int! reason old_epoch:int old_seq:int "
    "missing:int detail",
    CheckConstraint(one_of("kind", EPOCH_KINDS), name="mirror_epoch_kind"),
    CheckConstraint("batch > 0", name="mirror_epoch_in_batch"),
    Index("mirror_epoch_batch", "queue", "batch"),
    Index("mirror_epoch_entry", "queue", "epoch", "seq"),
)
"""Beginnings of epochs and breaks in the numbering, found when ``batch`` was written.

``started``: an epoch's first entry. ``joined``: the mirror's first entry was in the middle of an epoch. ``gap``:
entries between (old_epoch, old_seq) and (epoch, seq) are missing; ``missing`` is their number, if known. ``changed``:
Redis has another entry under the number of a mirrored entry. ``lost``: when the epoch began, Redis did not know the
last mirrored entry any more.
"""

mirror_loss = _table(
    "mirror_loss",
    "id:serial queue! batch:int! kind! epoch:int! at_ms:int! after_epoch:int after_seq:int upto_epoch:int! "
    "upto_seq:int! events:int! jobs:int! passed:int!",
    CheckConstraint(one_of("kind", LOSS_KINDS), name="mirror_loss_kind"),
    CheckConstraint("batch > 0", name="mirror_loss_in_batch"),
    CheckConstraint("after_epoch IS NULL OR after_epoch < epoch", name="mirror_loss_after"),
    Index("mirror_loss_batch", "queue", "batch"),
    Index("mirror_loss_epoch", "queue", "epoch"),
)
"""The losses of events by Redis, found when ``epoch`` began. A loss can be undone: if Redis is restored to a history
that has the lost events, Redis forgets ``epoch`` instead. The view ``orphaned_range`` has only ranges that are lost
now.

``orphaned``: Redis still knew all entries up to (after_epoch, after_seq); the later entries, up to (upto_epoch,
upto_seq), are not part of the history that Redis continued. ``events`` is the number of events in these entries;
``jobs`` is the number of jobs whose rows were made again without these events. ``forgotten``: Redis remembered nothing;
``jobs`` live jobs are lost. ``restated``: the baseline that began with ``epoch`` was complete at (upto_epoch, upto_seq)
and did not name ``jobs`` jobs that were alive before. ``passed``: the number of Redis' entries that could not be
mirrored, since the mirror was past their numbers; they are in quarantine, as ``conflict``."""

mirror_batch = _table(
    "mirror_batch",
    "queue! batch:int! first_epoch:int! first_seq:int! last_epoch:int! last_seq:int! entries:int! events:int! "
    "jobs:int! bytes:int! anchor! digest! found! prev! head!",
    PrimaryKeyConstraint("queue", "batch", name="mirror_batch_pkey"),
    CheckConstraint("batch > 0", name="mirror_batch_from_one"),
)
"""The chain of batches. ``digest`` is the SHA-256 of the batch's rows of job_event in the text format of COPY;
``found`` is the SHA-256 of the batch's rows of mirror_epoch, mirror_loss, quarantine and mirror_prune (without the
rows' ids); ``head`` is the SHA-256 of prev, queue, batch, first, last, entries, events, jobs, bytes, anchor, digest and
found, joined by spaces. ``jobs`` and ``bytes`` are taken off the backlog when the batch is trimmed; ``anchor`` is the
SHA-256 of the batch's last entry."""

quarantine = _table(
    "quarantine",
    "id:serial queue! batch:int! epoch:int! seq:int! ordinal:int kind! reason!",
    Column("raw", LargeBinary, nullable=False),
    CheckConstraint(one_of("kind", QUARANTINE_KINDS), name="quarantine_kind"),
    CheckConstraint("batch > 0", name="quarantine_in_batch"),
    Index("quarantine_batch", "queue", "batch"),
    Index("quarantine_entry", "queue", "epoch", "seq"),
)
"""Entries that could not become rows unchanged, with all their bytes: ``raw`` is a JSON array of pairs of base64 texts
(see :func:`sql_audit.mirror.intake.pack_entry`). Of the quarantined jobs of one entry, only the first has the bytes."""

mirror_proof = _table(
    "mirror_proof",
    "id:serial queue! at_ms:int! verdict! epoch:int! seq:int! batch:int! head! events:int!",
    CheckConstraint(one_of("verdict", PROOF_VERDICTS), name="mirror_proof_verdict"),
    Index("mirror_proof_queue", "queue", "id"),
)
"""Results of ``audit verify`` without a violation: the log up to (epoch, seq), the end of ``batch``. Verdict ``holds``:
everything was proved; ``unknown``: something could not be proved. ``at_ms`` is the time by the clock of the machine
that verified."""

mirror_prune = _table(
    "mirror_prune",
    "id:serial queue! batch:int! kind! at_ms:int! actor! rules! epoch:int! seq:int! cut_at_ms:int! cut_batch:int! "
    "head! through_entries:int! through_events:int! jobs:int events:int kept_events:int kept_digest",
    CheckConstraint(one_of("kind", PRUNE_KINDS), name="mirror_prune_kind"),
    Index("mirror_prune_queue", "queue", "id"),
    Index("mirror_prune_batch", "queue", "batch"),
)
"""The records of prunes. The triggers let rows of the log be deleted only while a prune is recorded as ``begun``.

``batch`` is a batch without entries; its hash covers the record. While the last row of a queue is ``begun``, only
events up to (epoch, seq), the *cut*, and batches and quarantined entries up to ``cut_batch`` may be deleted. ``head``
is the chain's head at the cut; ``cut_at_ms`` is the time of the last event before the cut; ``through_entries`` and
``through_events`` are the numbers of all entries and events up to the cut, removed ones included; ``rules`` are the
times for which jobs were kept. A row ``done`` has the numbers of ``jobs`` and ``events`` that the prune removed,
``kept_events``, the number of events that the prune left up to the cut, and ``kept_digest``, the SHA-256 of these
events and of the findings of the batches up to the cut, in the text format of COPY."""

APPEND_ONLY: Final = (
    job_event, mirror_epoch, mirror_batch, quarantine, mirror_loss, mirror_proof, mirror_prune,
)  # fmt: skip
"""The tables in which triggers refuse UPDATE and DELETE, except the deletions of prunes (triggers.DOORS)."""

UNTIL_ZEROS: Final = "0" * 20
UNTIL: Final = f"SUBSTR('{UNTIL_ZEROS}', LENGTH(name_stands) - 5) || SUBSTR(name_stands, 7)"
"""An SQL expression: the instant up to which a name is held (from ``until:1795225806504``), with leading zeros, so that
it can be compared as a text. A client may have written a text that is not a number, which PostgreSQL could not
convert."""

EVERYDAY_INDEXES: Final = (
    f"CREATE INDEX job_event_tick ON job_event (queue, ({TICK_NAME}), at_ms) WHERE type = 'ticked'",
    f"CREATE INDEX job_event_pause ON job_event (queue, at_ms) WHERE {IS_PAUSE.format('')}",
    (
        f"CREATE INDEX job_event_pause_scope ON job_event (queue, ({SCOPE_OF_PAUSE.format('')}), at_ms) "
        f"WHERE {IS_PAUSE.format('')}"
    ),
    (
        f"CREATE INDEX job_attempt_span ON job_attempt (queue, ({SPAN}), ended_at_ms, claimed_at_ms, ready_at_ms) "
        "WHERE ended_at_ms IS NOT NULL"
    ),
    (
        f"CREATE INDEX job_attempt_ran ON job_attempt (queue, ({RAN}), ended_at_ms) "
        "WHERE ended_at_ms IS NOT NULL"
    ),
    "CREATE INDEX job_attempt_open ON job_attempt (queue, claimed_at_ms) WHERE ended_at_ms IS NULL",
    (
        "CREATE INDEX job_attempt_failed ON job_attempt (outcome, ended_at_ms) "
        "WHERE outcome <> 'succeeded'"
    ),
    "CREATE INDEX job_alive ON job (state, queue, ready_at_ms) WHERE finished_at_ms IS NULL",
    "CREATE INDEX job_cancelled ON job (queue, finished_at_ms) WHERE state = 'cancelled'",
    "CREATE INDEX job_unique ON job (queue, unique_name) WHERE unique_name IS NOT NULL",
    f"CREATE INDEX job_throttled ON job (queue, ({UNTIL})) WHERE name_stands LIKE 'until:%'",
    "CREATE INDEX job_discarded ON job (queue, finished_at_ms) WHERE state = 'discarded'",
    "CREATE INDEX job_remembered ON job (queue, once_ms) WHERE once_ms IS NOT NULL",
    "CREATE INDEX job_claimed_again ON job (claims) WHERE claims > 1",
)
"""Statements that create the indexes for common queries, to be passed through :func:`in_dialect`. All indexes except
``job_event_tick``, ``job_attempt_span`` and ``job_attempt_ran`` have few rows. They are not defined with their tables,
since SQLAlchemy cannot read indexes of expressions from SQLite."""


def in_dialect(dialect: str, statement: str) -> str:
    """Return a statement for a dialect: for PostgreSQL, with PostgreSQL's name for the function INSTR."""
    return statement if dialect == "sqlite" else statement.replace("INSTR(", "STRPOS(")


EVENT_COLUMNS: Final = tuple(column.name for column in job_event.columns)
JOB_COLUMNS: Final = tuple(column.name for column in job.columns)
ENDING_COLUMNS: Final = ("ended_at_ms", "ran_ms", "outcome", "error_type", "error_message")
"""The columns that the end of a claim fills. The beginning of the claim fills the others."""
ATTEMPT_COLUMNS: Final = tuple(column.name for column in job_attempt.columns)
