"""Every error that sql_audit raises on purpose.

RqCoreError
├── UsageError
│   ├── AuditUrlInvalid
│   ├── HistoryUnknown
│   ├── InboxUrlInvalid
│   └── QueueNotMirrored
├── InboxDamaged
├── InboxError              the database with the inbox, or its tables, are not usable
│   ├── InboxCopied
│   ├── InboxForeign
│   ├── InboxInPlace
│   ├── InboxRefused
│   └── InboxUnavailable
│       └── InboxFileMissing
└── AuditError              the audit database, or its schema, is not usable
    ├── AuditUnavailable
    ├── AuditEncoding
    ├── AuditNotWritable
    ├── AuditRefused
    ├── NothingMirrored
    ├── AuditEmpty
    ├── AuditCopied
    ├── SourceDiffers
    ├── QueuesElsewhere
    ├── CursorHeld
    ├── SchemaMissing
    ├── SchemaUnseen
    ├── SchemaBehind
    ├── SchemaAhead
    ├── SchemaForeign
    ├── PlaceTaken
    ├── RowDamaged
    ├── NotProven
    └── MirrorBehind
"""

from __future__ import annotations

from rq_core.errors import RqCoreError, UsageError


class AuditUrlInvalid(UsageError):
    """{url!r} is not an audit database: {why}. Use a path, sqlite:///path or
    postgresql://user@host/database.
    """

    url: str
    why: str


class HistoryUnknown(UsageError):
    """the audit database knows no job {job_id!r}{where}{pruned}."""

    job_id: str
    where: str
    pruned: str


class QueueNotMirrored(UsageError):
    """the audit database knows no queue {queue!r}: known are {known}"""

    queue: str
    known: str


class InboxUrlInvalid(UsageError):
    """{url!r} is not a database for an inbox: {why}. Use a path, sqlite:///path or postgresql://user@host/database."""

    url: str
    why: str


class InboxError(RqCoreError):
    """the database with the inbox is not usable."""

    url: str


class InboxCopied(InboxError):
    """the database {url} with the inbox is a copy, or it was moved: the inbox belongs to {bound} and is at {here}. If
    it is a copy, `rq-core inbox settle {url} --copy` makes it an inbox of its own and parks the rows that the original
    hands over. If the inbox is here now, after a move or a restore: `rq-core inbox settle {url} --moved`.
    """

    bound: str
    here: str


class InboxInPlace(InboxError):
    """the inbox in {url} is no copy that rq-core can tell: {why}. On the original, --copy would park all rows that
    wait. If a whole server or disk was copied, and this is the copy, add --same-place. Nothing was changed."""

    why: str


class InboxDamaged(RqCoreError):
    """the inbox in {url} was altered: {what}"""

    url: str
    what: str


class InboxForeign(InboxError):
    """the database {url} has a table {table} that rq-core did not create: its columns are {columns}. Rename it, or use
    another schema for the inbox.
    """

    table: str
    columns: str


class InboxRefused(InboxError):
    """the database {url} refuses: {why}"""

    why: str


class InboxUnavailable(InboxError):
    """the database {url} does not answer: {why}"""

    why: str


class InboxFileMissing(InboxUnavailable):
    """the database {url} does not answer: {why}"""

    lacks_file = True
    """Always True. rq_core cannot import this class, and recognises the error by this attribute. In a Django project,
    rq_core then names the command that creates the file."""


class AuditError(RqCoreError):
    """the audit database is not usable."""


class AuditUnavailable(AuditError):
    """the audit database {url} does not answer: {why}"""

    url: str
    why: str


class AuditEncoding(AuditError):
    """the audit database {url} has the encoding {encoding}, and cannot keep every text: use another one, made by
    CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0.
    """

    url: str
    encoding: str


class AuditNotWritable(AuditError):
    """the audit database {url} cannot be used: {why}. SQLite needs to write the file, the files beside it and their
    directory, also to read: give the user these rights, or name another file.
    """

    url: str
    why: str


class AuditRefused(AuditError):
    """the audit database refuses: {why}"""

    why: str


class NothingMirrored(AuditError):
    """nothing is mirrored yet: start `rq-core audit run`"""


class AuditEmpty(AuditError):
    """there is no audit log at {url} yet: start `rq-core audit run --audit {url}`, or create it
    with `rq-core audit migrate --audit {url}`.
    """

    url: str


class AuditCopied(AuditError):
    """the audit database {url} is a copy, or it was moved: it belongs to {bound} and is at {here}. One of two
    commands resolves it. If it should be a log of its own: `rq-core audit fork --audit {url}`. If it is the log now,
    after a move or a restore from a backup, and no mirror writes to the other: `rq-core audit rebind --audit {url}`.
    """

    url: str
    bound: str
    here: str


class SourceDiffers(AuditError):
    """the audit database {url} has the log of another Redis than {redis} with prefix {prefix}: {why}. One of two
    commands resolves it. If this Redis should have a log of its own, give it another database: `rq-core audit run
    --redis {redis} --prefix {prefix} --audit ANOTHER`. If it is the log's Redis now, after it was moved, or lost
    everything and was used again, and no mirror reads the other one: `rq-core audit adopt --redis {redis} --prefix
    {prefix} --audit {url}`.
    """

    url: str
    redis: str
    prefix: str
    why: str


class QueuesElsewhere(AuditError):
    """another audit database than {url} mirrors {queues} of Redis {redis} with prefix {prefix}, so nothing was changed.
    Use that database. Redis knows only its id: in each database `SELECT audit_id FROM audit_meta` shows it, and the log
    of the mirror that writes there names the place. If this database should have the other queues only, name each of
    them with --queue. Only if the other database is lost: `rq-core audit off QUEUE --force` for each queue that it
    mirrors; events that were not mirrored may then be in no log.
    """

    url: str
    redis: str
    prefix: str
    queues: str


class CursorHeld(AuditError):
    """another mirror writes the log of queue {queue} just now: run this again."""

    queue: str


class SchemaMissing(AuditError):
    """the audit log cannot be created in {url}: of its search path ({path}), no schema exists that the role may use.
    Create one (CREATE SCHEMA … AUTHORIZATION role), or name another in the URL (?options=-csearch_path=…).
    """

    url: str
    path: str


class SchemaUnseen(AuditError):
    """the audit log of {url} is in schema {schema}, which role {role} does not see: `rq-core audit grants` prints its
    rights and its search path (ALTER ROLE … SET search_path = {schema}). To make another log there:
    `rq-core audit migrate`.
    """

    url: str
    schema: str
    role: str


class SchemaBehind(AuditError):
    """the audit database {url} has schema {found}, this release needs {needed}: run
    `rq-core audit migrate --audit {url}`.
    """

    url: str
    found: str
    needed: str


class SchemaAhead(AuditError):
    """the audit database {url} has schema {found}, which this release does not know (it knows
    {needed}): use the release that made it.
    """

    url: str
    found: str
    needed: str


class SchemaForeign(AuditError):
    """the database {url} has tables that rq-core did not create but that have the names of its audit tables ({tables}):
    use another database or schema for the audit log.
    """

    url: str
    tables: str


class PlaceTaken(AuditError):
    """queue {queue} has an event of another origin under number {number}."""

    queue: str
    number: str


class RowDamaged(AuditError):
    """queue {queue}: the {part} {number} cannot be read: `rq-core audit verify --queue {queue}` shows what else is
    damaged.
    """

    queue: str
    part: str
    number: str


class NotProven(AuditError):
    """queue {queue}: nothing was pruned, since its log {why}: `rq-core audit verify --queue {queue}` says
    where{hint}.
    """

    queue: str
    why: str
    hint: str


class MirrorBehind(AuditError):
    """queue {queue}: Redis has {redis} and SQL {sql}, so SQL cannot say what is lost: is `rq-core audit run`
    running, on this database? Start it, and run this again.
    """

    queue: str
    redis: str
    sql: str
