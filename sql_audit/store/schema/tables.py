"""The tables of the audit log, their CHECK constraints and indexes.

The words in the CHECKs come from :mod:`rq_core.model.table.machine`. Every time is an integer of Unix milliseconds,
named ``*_ms``, and is the event's own.

``job_event`` is kept in the order of its primary key. On PostgreSQL it is partitioned by the month of
``at_ms`` (:mod:`sql_audit.store.partitions`), which its primary key must then contain; that no number is
taken twice is looked at before each batch, under the cursor's lock.
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
"""The type of a row in the place of an event that SQL or the decoder refused."""

TERMINAL_STATES: Final = tuple(dict.fromkeys(str(t.event) for t in TRANSITIONS if t.target is None))
"""The states of jobs that left Redis: each is the event that ended the job."""

GONE: Final = "gone"
"""Redis does not have the job, and no event says why."""

LOST: Final = "lost"
"""Redis had the job and forgot it; and a claim whose end is not in the log."""

JOB_STATES: Final = (*(str(s) for s in State), *TERMINAL_STATES, GONE, LOST)

OUTCOMES: Final = (
    *dict.fromkeys(
        str(t.event)
        for t in TRANSITIONS
        if t.source in CLAIMED_STATES and t.target not in CLAIMED_STATES
    ),
    LOST,
)
"""How a claim may end: the events that end it, or ``lost``."""

QUARANTINE_KINDS: Final = ("undecodable", "sanitised", "refused", "conflict")
PRUNE_KINDS: Final = ("begun", "done")
PROOF_VERDICTS: Final = ("holds", "unknown")
EPOCH_KINDS: Final = ("started", "joined", "gap", "changed", "lost")
LOSS_KINDS: Final = ("orphaned", "forgotten", "restated")


def one_of(column: str, words: Iterable[str]) -> str:
    """The condition that ``column`` holds one of ``words``."""
    return f"{column} IN ({', '.join(repr(str(word)) for word in words)})"


def _words_check(name: str, column: str, words: Sequence[str]) -> tuple[CheckConstraint, ...]:
    """Make the CHECK that a column is one of ``words``, for a table with many rows.

    SQLite makes an index of an IN list for every row, which is half of the time that a row takes.
    """
    chain = " OR ".join(f"{column} = {str(word)!r}" for word in words)
    return (
        CheckConstraint(chain, name=name).ddl_if(dialect="sqlite"),
        CheckConstraint(one_of(column, words), name=name).ddl_if(dialect="postgresql"),
    )


def _column(name: str, kind: str, *, null: bool) -> Column[Any]:
    if kind == "serial":
        return Column(name, Integer, primary_key=True, autoincrement=True)
    # A BIGINT in a composite key would otherwise be taken for a serial.
    return Column(name, BigInteger if kind else Text, nullable=null, autoincrement=False)


def _columns(words: str) -> Iterator[Column[Any]]:
    """Make columns: ``name`` is text and ``name:int`` a number. One with a ``!`` is never null."""
    for word in words.split():
        name, _, kind = word.rstrip("!").partition(":")
        yield _column(name, kind, null=not word.endswith("!"))


def _table(name: str, columns: str, *others: SchemaItem, **options: Any) -> Table:
    return Table(name, metadata, *_columns(columns), *others, **options)


def _of_field(field: Field) -> Column[Any]:
    """The column of a job's field. A counter begins at 0; any other may be unknown."""
    kind = "int" if field.kind is FieldKind.NUMBER else ""
    return _column(field.name, kind, null=field.name not in COUNTERS)


audit_meta = Table(
    "audit_meta",
    metadata,
    Column("one", SmallInteger, primary_key=True, autoincrement=False),
    *_columns("audit_id! chain_id place"),
    CheckConstraint("one = 1", name="audit_meta_one_row"),
)
"""One row: the random name of this database, which every trim presents to Redis."""

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
"""Every event, append-only: what happened to which job, in the order in which it happened.

``worker`` is who made the call: a worker, a producer or a person. ``claim`` and ``task`` are known
from the job where the event itself does not carry them. ``detail`` is a JSON object of whatever
else it carries.
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
"""Each job as its surviving events tell it. ``complete`` 0: its beginning was not seen.

State ``lost``: Redis had it and forgot it; ``reason`` is the state that it was in. ``gone``: a
complete baseline did not name it, and no event says how it ended.

It has a column for each of a job's fields; :mod:`rq_core.model.table.fields` says what its traits mean. ``lane`` is
where it waits for its scopes, or waited last: priority, then the scopes, joined by ``+``.
"""

job_attempt = _table(
    "job_attempt",
    "job_id! queue! fence! claim:int task worker ready_at_ms:int claimed_at_ms:int ended_at_ms:int waited_ms:int "
    "ran_ms:int outcome error_type error_message scopes",
    PrimaryKeyConstraint("job_id", "queue", "fence", name="job_attempt_pkey"),
    *_words_check("job_attempt_outcome", "outcome", OUTCOMES),
    sqlite_with_rowid=False,
)
"""Each claim: who had it, how long the job had waited, how long it ran, how it ended (null: in
force).

Its name is the fence, since the count of claims begins at 1 again when an id is used a second time.
``scopes`` is what counted it and the caps in force, as its event says: a JSON array of
``[scope, cap]`` and ``[rate's scope, limit, window_ms, burst]``.
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
"""The claims that ended, counted by minute, outcome, task, worker and error (an empty text: not known, or no error).
Questions about all claims read these few rows.

They are counted in the transaction that ends the claims, and again when events that Redis forgot are taken out. A prune
leaves them: they still count the claims of removed jobs.
"""

mirror_cursor = _table(
    "mirror_cursor",
    "queue! epoch:int seq:int at_ms:int anchor batch:int! head! entries:int! events:int! bytes:int! "
    "quarantined:int! gaps:int! trim_jobs:int! trim_bytes:int! prefix stamp",
    PrimaryKeyConstraint("queue", name="mirror_cursor_pkey"),
    CheckConstraint("(epoch IS NULL) = (seq IS NULL)", name="mirror_cursor_entry"),
)
"""The end of a queue's last batch, and the sums of all its batches. ``anchor`` is the SHA-256 of the last
entry, which the next read must find; ``trim_jobs`` and ``trim_bytes`` are what the last batch takes off the backlog
when Redis is trimmed.
``prefix`` and ``stamp`` are the queue's source: the prefix of its keys, and the mark that Redis keeps in its ``meta``.
Without a stamp the next Redis of that prefix may take the queue, without a prefix any
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
"""Beginnings and breaks of the numbering, found when ``batch`` was written.

``started``: an epoch's first entry. ``joined``: the mirror's first entry was not one. ``gap``:
entries between (old_epoch, old_seq) and (epoch, seq) are missing, ``missing`` of them if that is
known. ``changed``: an entry already mirrored has another content in Redis now. ``lost``: Redis has
nothing at or after what is mirrored.
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
"""The losses of Redis, found when ``epoch`` began. The view ``orphaned_range`` has those that still hold: Redis may
forget an epoch that had forgotten something, and remember again.

``orphaned``: Redis still knew everything up to (after_epoch, after_seq); the ``events`` behind it, up
to (upto_epoch, upto_seq), are not part of the history that went on, and ``jobs`` were folded again
without them. ``forgotten``: Redis remembered nothing, ``jobs`` live ones are lost. ``restated``: the
baseline that began with ``epoch`` was complete at (upto_epoch, upto_seq), and did not name ``jobs``
that were alive before. ``passed``: entries that Redis had under numbers which SQL had passed; they are
in quarantine, as ``conflict``."""

mirror_batch = _table(
    "mirror_batch",
    "queue! batch:int! first_epoch:int! first_seq:int! last_epoch:int! last_seq:int! entries:int! events:int! "
    "jobs:int! bytes:int! anchor! digest! found! prev! head!",
    PrimaryKeyConstraint("queue", "batch", name="mirror_batch_pkey"),
    CheckConstraint("batch > 0", name="mirror_batch_from_one"),
)
"""The chain: ``digest`` is the SHA-256 of the batch's rows of job_event in the text format of COPY, ``found`` that of
its rows of mirror_epoch, mirror_loss, quarantine and mirror_prune (without their ids), ``head`` that of prev, queue,
batch, first, last, entries, events, jobs, bytes, anchor, digest and found, joined by spaces. ``jobs`` and ``bytes`` are
what it takes off the backlog, ``anchor`` is the SHA-256 of its last entry."""

quarantine = _table(
    "quarantine",
    "id:serial queue! batch:int! epoch:int! seq:int! ordinal:int kind! reason!",
    Column("raw", LargeBinary, nullable=False),
    CheckConstraint(one_of("kind", QUARANTINE_KINDS), name="quarantine_kind"),
    CheckConstraint("batch > 0", name="quarantine_in_batch"),
    Index("quarantine_batch", "queue", "batch"),
    Index("quarantine_entry", "queue", "epoch", "seq"),
)
"""Entries kept byte for byte: a JSON object of base64 fields, see
:func:`sql_audit.mirror.intake.pack_entry`."""

mirror_proof = _table(
    "mirror_proof",
    "id:serial queue! at_ms:int! verdict! epoch:int! seq:int! batch:int! head! events:int!",
    CheckConstraint(one_of("verdict", PROOF_VERDICTS), name="mirror_proof_verdict"),
    Index("mirror_proof_queue", "queue", "id"),
)
"""The results of ``audit verify``: the log up to (epoch, seq), the end of ``batch``, holds (or, ``unknown``, has no
fault, but does not know all). ``at_ms`` is the clock of the machine that verified."""

mirror_prune = _table(
    "mirror_prune",
    "id:serial queue! batch:int! kind! at_ms:int! actor! rules! epoch:int! seq:int! cut_at_ms:int! cut_batch:int! "
    "head! through_entries:int! through_events:int! jobs:int events:int kept_events:int kept_digest",
    CheckConstraint(one_of("kind", PRUNE_KINDS), name="mirror_prune_kind"),
    Index("mirror_prune_queue", "queue", "id"),
    Index("mirror_prune_batch", "queue", "batch"),
)
"""The one door through which rows of the log leave, and the record of each time that it was used.

``batch`` is the batch without entries that puts the row under the chain. While the last row of a queue is ``begun``,
events up to (epoch, seq), its *cut*, and batches and quarantined bytes up to ``cut_batch`` may be deleted, and nothing
else. ``head`` is the chain's at the cut, ``cut_at_ms`` the
time of the last event there, ``through_entries`` and ``through_events`` how many there have ever been
up to it, ``rules`` what was kept for how long. ``done``: how many ``jobs`` and ``events`` this prune
removed, the number of events that it left up to the cut, and the SHA-256 of these and of what batches up to there had
found out, in the text format of COPY."""

APPEND_ONLY: Final = (
    job_event, mirror_epoch, mirror_batch, quarantine, mirror_loss, mirror_proof, mirror_prune,
)  # fmt: skip
"""Tables in which the database itself refuses UPDATE and DELETE, but for DOORS."""

UNTIL_ZEROS: Final = "0" * 20
UNTIL: Final = f"SUBSTR('{UNTIL_ZEROS}', LENGTH(name_stands) - 5) || SUBSTR(name_stands, 7)"
"""The instant up to which a name is held (``until:1795225806504``), with zeros before it, so that it can be compared as
text: a client may have written a text that is not a number, which PostgreSQL would refuse."""

EVERYDAY_INDEXES: Final = (
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
"""The indexes behind the everyday questions; all but the first two hold few rows. They stand here and not at
their tables, since SQLAlchemy reads no expressions back from SQLite."""

EVENT_COLUMNS: Final = tuple(column.name for column in job_event.columns)
JOB_COLUMNS: Final = tuple(column.name for column in job.columns)
ENDING_COLUMNS: Final = ("ended_at_ms", "ran_ms", "outcome", "error_type", "error_message")
"""The columns that the end of a claim fills; its beginning fills the others."""
ATTEMPT_COLUMNS: Final = tuple(column.name for column in job_attempt.columns)
