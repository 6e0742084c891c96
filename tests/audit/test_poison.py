"""Entries that the mirror cannot read, or that SQL refuses. The mirror keeps their bytes and continues."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import text

from rq_core.app.handlers.redaction import MESSAGE_MAX, describe_error
from rq_core.connections.client import Client
from rq_core.doctor import diagnose, repair
from rq_core.errors import QueueDamaged
from rq_core.model.ids import JobIds
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims
from sql_audit.mirror.intake import Intake, unpack_entry
from sql_audit.mirror.projection.fold import Folder
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import history, moments
from sql_audit.store.connection.copy import EventRows
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.driver_errors import data_refused
from sql_audit.store.schema.tables import EVENT_COLUMNS
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue
from tests.kit.schemas import lay_schema

ENQUEUED = [None, None, "send", "normal", 3, 3]


def numbers(database: Database) -> list[tuple[int, int]]:
    return [(row["seq"], row["ordinal"]) for row in auditlog.events(database, QUEUE)]


def fields(kind: str, *jobs: Any, **more: str | bytes) -> dict[str, str | bytes]:
    return {"type": kind, "by": "w-1", "jobs": json.dumps(jobs), **more}


WHOLE: list[tuple[str, dict[str, str | bytes]]] = [
    ("an unknown type", fields("discombobulated", ["a"])),
    ("no type", {"by": "w-1", "jobs": '[["a"]]'}),
    ("no by", {"type": "pruned", "jobs": '[["a"]]'}),
    ("no jobs", {"type": "pruned", "by": "w-1"}),
    ("empty jobs", fields("pruned")),
    ("jobs that are an object", {"type": "pruned", "by": "w-1", "jobs": '{"a":1}'}),
    ("half of a JSON", {"type": "pruned", "by": "w-1", "jobs": '[["a"'}),
    ("not a number", {"type": "retried", "by": "w-1", "jobs": '[["a","7-1",NaN]]'}),
    ("deep JSON", {"type": "pruned", "by": "w-1", "jobs": "[" * 100_000}),
    ("a number of 5000 digits", {"type": "pruned", "by": "w-1", "jobs": "[[" + "9" * 5000 + "]]"}),
    ("a time that is none", fields("pruned", ["a"], at="yesterday")),
    ("a time beyond SQL", fields("pruned", ["a"], at="9" * 30)),
    ("a long by", fields("pruned", ["a"], by="w" * 5000)),
    ("bytes", {"type": b"\xff\xfe", "by": b"\x80", "jobs": b"\xc3\x28"}),
    ("odd field names", {b"\xff".decode("latin-1"): b"\xff", "type": "pruned", "by": "w-1"}),
]


@pytest.mark.parametrize(("name", "poison"), WHOLE, ids=[name for name, _ in WHOLE])
def test_an_unreadable_entry_is_stored_at_its_position_with_its_bytes(
    name: str,
    poison: dict[str, str | bytes],
    writer: StreamWriter,
    mirror: Mirror,
    database: Database,
) -> None:
    enqueue(writer, "before")
    at = writer.raw(poison)
    enqueue(writer, "after")

    auditlog.drain(mirror)

    kept = auditlog.one(database, "SELECT * FROM quarantine")
    assert f"{kept['epoch']}-{kept['seq']}" == at
    raw = {k: v.encode("utf-8", "surrogateescape") for k, v in unpack_entry(kept["raw"]).items()}
    assert raw == writer.log[2][1]
    assert numbers(database) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert auditlog.events(database, QUEUE)[2]["type"] == "quarantined"
    auditlog.assert_chain_holds(database, QUEUE)


def test_the_mirror_logs_a_warning_when_an_entry_goes_to_quarantine(
    writer: StreamWriter, mirror: Mirror, caplog: pytest.LogCaptureFixture
) -> None:
    """Checks that the line has the number of the first entry, and nothing that the entry carries."""
    enqueue(writer, "before")
    at = writer.raw(fields("enqueued", ["secret", *ENQUEUED, "too", "many", "fields", "here"]))
    enqueue(writer, "after")

    auditlog.drain(mirror)

    (said,) = [r.getMessage() for r in caplog.records if "quarantine" in r.getMessage()]
    assert said.startswith(f"queue {QUEUE}: 1 entry is in quarantine, the first at {at} (")
    assert f"`rq-core audit verify --queue {QUEUE}` names all" in said
    assert "secret" not in said


ONE: list[tuple[str, Any]] = [
    ("not an array", "x"),
    ("empty", []),
    ("no id", [None, *ENQUEUED]),
    ("an id that is a number", [5, *ENQUEUED]),
    ("an id that is a list", [["x"], *ENQUEUED]),
    ("an empty id", ["", *ENQUEUED]),
    ("an id of 5000 characters", ["x" * 5000, *ENQUEUED]),
    ("too many fields", ["x", *ENQUEUED, "digest", "2+tenant=acme", "{}", "more"]),
    ("a number beyond SQL", ["x", 2**63, None, "send", "normal", 3, 3]),
    ("a negative number", ["x", -1, None, "send", "normal", 3, 3]),
    ("a fraction", ["x", 1.5, None, "send", "normal", 3, 3]),
    ("a truth", ["x", True, None, "send", "normal", 3, 3]),
    ("text for a number", ["x", "1", None, "send", "normal", 3, 3]),
    ("an unknown priority", ["x", 1, None, "send", "urgent", 3, 3]),
    ("a task that is an object", ["x", 1, None, {}, "normal", 3, 3]),
]


@pytest.mark.parametrize(("name", "array"), ONE, ids=[name for name, _ in ONE])
def test_an_unreadable_job_does_not_affect_the_other_jobs_of_its_entry(
    name: str, array: Any, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    good = [["a", *ENQUEUED], ["b", *ENQUEUED]]
    writer.raw(fields("enqueued", good[0], array, good[1]))

    auditlog.drain(mirror)

    jobs = auditlog.rows(database, "SELECT job_id FROM job ORDER BY job_id")
    assert [j["job_id"] for j in jobs] == ["a", "b"]
    assert numbers(database) == [(0, 0), (1, 0), (1, 1), (1, 2)]
    auditlog.assert_chain_holds(database, QUEUE)
    kept = auditlog.one(database, "SELECT ordinal, kind FROM quarantine")
    assert kept == {"ordinal": 1, "kind": "undecodable"}
    assert writer.backlog() == (0, 0)


SCOPES: dict[str, Any] = {
    "text": "task=send",
    "an object": {"task=send": 4},
    "text for a scope": ["task=send"],
    "an empty scope": [[]],
    "a scope without a name": [[4, 4]],
    "a name alone": [["task=send"]],
    "two facts": [["task=send", 4, 4]],
    "a cap that is text": [["task=send", "4"]],
    "a cap that is a list": [["task=send", [4]]],
    "a cap that is a truth": [["task=send", True]],
    "a cap beyond SQL": [["task=send", 2**63]],
    "a rate without a burst": [["task@1s=send", 4, 1000, None]],
    "NUL": [["task=a\0", 4]],
    "half a character": [["task=a\ud83d", 4]],
}


@pytest.mark.parametrize("scopes", SCOPES.values(), ids=SCOPES)
def test_a_claim_with_unreadable_scopes_goes_to_quarantine(
    scopes: Any, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that the views and `audit at`, which read the scopes of all claims, do not fail."""
    good = [["task=send", 4], ["tenant=acme", None], ["task@1s=send", 5, 1000, 1], ["queue", 9]]
    enqueue(writer, "a", "b", "c")
    writer.raw(fields("claimed", ["a", 1, good], ["b", 1, scopes], ["c", 1, None]))

    auditlog.drain(mirror)

    full = auditlog.rows(database, "SELECT scope, holders, cap FROM scope_occupancy ORDER BY scope")
    assert [(row["scope"], row["holders"], row["cap"]) for row in full] == [
        ("queue", 1, 9), ("task=send", 1, 4), ("tenant=acme", 1, None),
    ]  # fmt: skip
    running = moments.at(database.readers, QUEUE, writer.now_ms).running
    assert [claim.job_id for claim in running] == ["a", "c"]
    kept = auditlog.one(database, "SELECT seq, ordinal, kind FROM quarantine")
    assert kept == {"seq": 2, "ordinal": 1, "kind": "undecodable"}


# Around a thousand, what can still be read cannot be written, or not be read again elsewhere.
@pytest.mark.parametrize("depth", [30, 40, 940, 5000])
@pytest.mark.parametrize("kind", ["died", "cap_changed"])
def test_json_of_any_depth_does_not_stop_the_mirror_or_readers(
    depth: int, kind: str, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    nest = "[" * depth + "]" * depth
    enqueue(writer, "a", "b")
    if kind == "died":
        writer.raw({"type": kind, "by": "w", "jobs": f'[["a",null,"final",1,{nest}]]'})
    else:
        writer.raw({"type": kind, "by": "w", "data": f'["task=send",null,{nest},1]'})
    enqueue(writer, "after")

    auditlog.drain(mirror)

    assert numbers(database)[-1] == (3, 0)
    verify(database)
    tail = history.queue_tail(database.readers, QUEUE, 10)
    assert [event.seq for event in tail] == [0, 1, 1, 2, 3]
    assert (tail[-2].type == "quarantined") is (depth > 32)


HOSTILE = {
    "NUL": "nul \0 here",
    "a lone surrogate": "half \ud83d",
    "a reversed pair": "\udc00\ud83d",
    "tabs and newlines": "a\tb\nc\rd\\e\\N",
    "a real emoji": "whole \U0001f40d",
    "quotes": "'; DROP TABLE job_event; --\"",
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_error_with_any_text_is_kept_exactly(
    message: str, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    error = {"type": message, "message": message}
    enqueue(writer, "a")
    writer.raw(fields("died", ["a", None, "final", 1, error]))

    auditlog.drain(mirror)

    event = auditlog.events(database, QUEUE)[-1]
    assert json.loads(event["detail"])["error"] == error
    job = auditlog.one(database, "SELECT * FROM job")
    assert (job["state"], job["error_message"] is not None) == ("dead", True)
    assert auditlog.rows(database, "SELECT * FROM quarantine") == []


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_job_id_with_any_text_is_mirrored(
    name: str, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    by = name.encode("utf-8", "surrogatepass")
    writer.raw(fields("enqueued", [name, *ENQUEUED], ["b", *ENQUEUED], by=by, why=by))

    auditlog.drain(mirror)

    assert numbers(database) == [(0, 0), (1, 0), (1, 1)]
    events = auditlog.events(database, QUEUE)
    changed = events[1]["job_id"] != name
    kept = auditlog.rows(database, "SELECT kind FROM quarantine")
    assert [k["kind"] for k in kept] == (["sanitised"] if changed else [])
    assert ("\ufffd" in events[1]["job_id"]) is changed


def test_an_entry_with_invalid_utf_8_is_mirrored_with_all_its_jobs(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.raw({"type": "enqueued", "by": b"w\xff", "jobs": b'[["a\xff",1,null,"send"],["b",2]]'})

    auditlog.drain(mirror)

    events = auditlog.events(database, QUEUE)
    assert [e["job_id"] for e in events] == [None, "a\ufffd", "b"]
    kept = auditlog.one(database, "SELECT kind, raw FROM quarantine")
    assert unpack_entry(kept["raw"])["by"].encode("utf-8", "surrogateescape") == b"w\xff"


def test_an_error_of_ten_megabytes_is_mirrored(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    enqueue(writer, "a")
    writer.jobs("died", ["a", None, "final", 1, {"message": "x" * 10_000_000}])
    enqueue(writer, "b")

    auditlog.drain(mirror)

    assert len(auditlog.events(database, QUEUE)[2]["detail"]) > 10_000_000
    job = auditlog.one(database, "SELECT error_message FROM job WHERE job_id = 'a'")
    assert len(job["error_message"]) <= 2000


@pytest.mark.parametrize("stray", ["18446744073709551615-0", f"{2**63}-0", f"{2**53 + 2}-0"])
def test_the_doctor_reports_and_removes_a_number_beyond_the_range_of_sql(
    stray: str, valkey_url: str, database: Database
) -> None:
    """Checks that the mirror stops at this number with an error, and does not put it into quarantine."""
    with Client(valkey_url) as client, StreamSource(valkey_url).redis as hand:
        job = NewJob(JobIds()(), "q", profile("task"), "{}")
        client.run(client.calls.enqueue.one(job))
        mirror = Mirror(Outbox(client), database, "q")
        mirror.turn()
        client.run(client.calls.admin.configure("q", {"paused": 1}))
        hand.xadd("rqc:{q}:outbox", {"colour": "blue"}, id=stray)

        with pytest.raises(QueueDamaged, match=rf"{stray}.*rq-core doctor q --repair"):
            auditlog.drain(mirror)

        assert auditlog.events(database, "q")[-1]["type"] == "paused"
        assert repair(client, "q", diagnose(client, "q"), by="ada") == []
        client.run(client.calls.admin.configure("q", {"paused": 0}))
        auditlog.drain(mirror)

    assert auditlog.events(database, "q")[-1]["type"] == "resumed"
    assert auditlog.rows(database, "SELECT kind FROM quarantine") == []
    assert verify(database).verdict is LogVerdict.HOLDS


def test_a_row_that_only_the_database_refuses_goes_to_quarantine(
    writer: StreamWriter,
    mirror: Mirror,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks an event type of a later release, which the mirror accepts and a CHECK of the schema refuses."""
    ids = [f"j{n}" for n in range(50)]
    for job_id in ids:
        enqueue(writer, job_id)
    real: Callable[..., Any] = database.insert_events

    def insert(connection: Any, rows: list[Any], *others: Any) -> Any:
        unknown = [(*r[:4], "discombobulated", *r[5:]) if r[6] == "j33" else r for r in rows]
        return real(connection, EventRows(unknown), *others)

    monkeypatch.setattr(database, "insert_events", insert)

    auditlog.drain(mirror)

    kept = auditlog.one(database, "SELECT seq, kind, reason FROM quarantine")
    assert (kept["seq"], kept["kind"]) == (34, "refused")
    assert numbers(database) == [(n, 0) for n in range(51)]
    assert len(auditlog.rows(database, "SELECT job_id FROM job")) == 49
    assert writer.backlog() == (0, 0)


@pytest.mark.parametrize(
    ("column", "value"),
    [("at_ms", 2**63), ("task", "half \ud83d"), ("type", "x")],
    ids=["a number beyond SQL", "half a character", "what a CHECK refuses"],
)
def test_a_driver_error_about_a_value_counts_as_a_refusal_of_the_data(
    column: str, value: Any, database: Database
) -> None:
    """Checks a value that a CHECK refuses, and two values for which a driver raises a built-in exception."""
    row = dict(zip(EVENT_COLUMNS, (QUEUE, 1, 0, 0, "pruned", 1, *[None] * 5), strict=True))
    rows = EventRows([tuple((row | {column: value}).values())])

    with database.writing() as connection:
        assert connection is not None
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of any class
            database.insert_events(connection, rows, lambda: None)

    assert data_refused(caught.value)


def alter(database: Database, *statements: str) -> None:
    with database.writing(wait=True) as connection:
        assert connection is not None
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()


def test_columns_that_an_operator_added_to_the_tables_get_their_default_values(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that no job goes to quarantine, whether the job is new to SQL or has a row there."""
    for table in (
        "job",
        "job_attempt",
        "job_event",
        "claim_minute",
        "mirror_cursor",
        "mirror_batch",
        "quarantine",
    ):
        alter(database, f"ALTER TABLE {table} ADD COLUMN team TEXT NOT NULL DEFAULT 'ours'")
    enqueue(writer, "a")
    auditlog.drain(mirror)
    for event in ("claimed", "retried", "promoted", "claimed", "succeeded"):
        writer.jobs(event, ["a", 1 if writer.seq < 4 else 2] if event == "claimed" else ["a"])
        auditlog.drain(mirror)

    assert auditlog.rows(database, "SELECT reason FROM quarantine") == []
    assert auditlog.one(database, "SELECT state, team FROM job") == {
        "state": "succeeded",
        "team": "ours",
    }


OF_THE_SCHEMA = {
    "a column without a default": ["ALTER TABLE job_event ADD COLUMN team TEXT NOT NULL"],
    "a column that may be null no more": ["ALTER TABLE job ALTER COLUMN unique_name SET NOT NULL"],
    "a shorter column": ["ALTER TABLE mirror_batch ALTER COLUMN anchor TYPE VARCHAR(3)"],
    "a CHECK": ["ALTER TABLE job ADD CONSTRAINT mine CHECK (task <> 'send')"],
    "a unique index": ["CREATE UNIQUE INDEX mine ON job (task)"],
    "a trigger": [
        (
            "CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'restrict_violation'; END $$"
        ),
        "CREATE TRIGGER mine BEFORE INSERT ON job_event FOR EACH ROW EXECUTE FUNCTION mine()",
    ],
    "a partition that is gone": ["ALTER TABLE job_event DETACH PARTITION job_event_default"],
}
ON_SQLITE = {
    "a unique index": OF_THE_SCHEMA["a unique index"],
    "a trigger": [
        "CREATE TRIGGER mine BEFORE INSERT ON job_event BEGIN SELECT RAISE(ABORT, 'no'); END"
    ],
}


@pytest.mark.parametrize("name", OF_THE_SCHEMA)
def test_an_operators_change_to_a_postgres_schema_puts_nothing_into_quarantine(
    name: str, writer: StreamWriter, source: StreamSource, postgres_url: str
) -> None:
    _refused_until_mended(OF_THE_SCHEMA[name], writer, source, Database(postgres_url))


@pytest.mark.parametrize("name", ON_SQLITE)
def test_an_operators_change_to_a_sqlite_schema_puts_nothing_into_quarantine(
    name: str, writer: StreamWriter, source: StreamSource, sqlite_url: str
) -> None:
    _refused_until_mended(ON_SQLITE[name], writer, source, Database(sqlite_url))


def _refused_until_mended(
    changes: list[str], writer: StreamWriter, source: StreamSource, database: Database
) -> None:
    lay_schema(database)
    alter(database, *changes)
    mirror = Mirror(source, database, QUEUE)
    enqueue(writer, "a")
    enqueue(writer, "b")

    with pytest.raises(Exception) as caught:  # noqa: PT011 - of any class, as drivers have them
        auditlog.drain(mirror)

    assert not data_refused(caught.value)
    assert auditlog.rows(database, "SELECT reason FROM quarantine") == []
    assert writer.backlog()[0] == 3
    database.close()


@pytest.mark.parametrize("bug", [KeyError, IndexError, ValueError, TypeError, AttributeError])
def test_a_bug_of_the_mirror_puts_nothing_into_quarantine(
    bug: type[Exception],
    writer: StreamWriter,
    mirror: Mirror,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks an entry at which the mirror raises an unexpected error. The entry stays in Redis for a repaired
    release."""
    writer.life("a")
    auditlog.drain(mirror)
    writer.life("b")
    writer.life("c")
    real = Folder.add

    def add(folder: Folder, intake: Intake) -> None:
        real(folder, intake)
        if "b" in intake.columns.get("id", ()) and intake.event == "succeeded":
            raise bug("ours")

    monkeypatch.setattr(Folder, "add", add)
    for _ in range(20):
        with pytest.raises(bug, match="ours"):
            mirror.turn()
    monkeypatch.setattr(Folder, "add", real)

    auditlog.drain(mirror)

    assert auditlog.rows(database, "SELECT kind FROM quarantine") == []
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    assert writer.backlog() == (0, 0)


def test_an_entry_whose_number_is_already_used_goes_to_quarantine(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks a row of unknown origin with the number of a new entry. The row stays in its table."""
    writer.life("a")
    with database.writing() as connection:
        assert connection is not None
        row = (QUEUE, writer.epoch, 2, 0, "pruned", 1, "z", None, "w", None, None)
        database.insert_events(connection, EventRows([row]), lambda: None)
        connection.commit()

    auditlog.drain(mirror)

    kept = auditlog.one(database, "SELECT seq, kind FROM quarantine")
    assert kept == {"seq": 2, "kind": "conflict"}
    assert [e["type"] for e in auditlog.events(database, QUEUE)] == [
        "epoch_started", "enqueued", "pruned", "succeeded",
    ]  # fmt: skip


class Enormous(Exception):
    def __str__(self) -> str:
        return "x" * 10_000_000


@pytest.mark.parametrize(
    "error",
    [ValueError(text) for text in HOSTILE.values()]
    + [
        ValueError(float("nan"), 2**63, 2**53 + 1),
        ValueError(b"\xff\xfe"),
        ValueError(),
        Enormous(),
    ],
    ids=[*HOSTILE, "numbers", "bytes", "nothing", "ten megabytes"],
)
def test_an_exception_of_a_handler_reaches_sql_through_the_real_scripts(
    error: Exception, valkey_url: str, database: Database
) -> None:
    """Checks the whole way from the exception in a worker to the row in SQL. No entry is put into quarantine."""
    with Client(valkey_url) as client:
        client.run(client.calls.enqueue.many([NewJob(JobIds()(), "q", profile("task"), "{}")]))
        mirror = Mirror(Outbox(client), database, "q")
        claim = client.run(claims.claim("q", "w-1", 1)).jobs[0]
        record = (claim.id, claim.fence, "final", 0, "failed", describe_error(error))
        client.run(claims.fail("q", "w-1", [record]))
        auditlog.drain(mirror)

    died = auditlog.events(database, "q")[-1]
    kept = json.loads(died["detail"])["error"]
    said = str(error)
    if len(said) <= MESSAGE_MAX:
        assert kept["message"] == said
    else:
        assert len(kept["message"]) < MESSAGE_MAX + 50
        assert "characters left out" in kept["message"]
    assert auditlog.rows(database, "SELECT * FROM quarantine") == []
    assert verify(database).verdict is LogVerdict.HOLDS
