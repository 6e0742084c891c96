"""`rq-core doctor --inbox` reports each fault of an inbox, and nothing else."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.errors import BadArguments
from sql_audit.inbox.schema import ddl
from sql_audit.store.connection import driver_errors
from tests.kit.inbox import QUEUE, Stage, at, finish


class Ended(Exception):
    """Raised in a step of a relay, to end the relay there."""


def end() -> None:
    raise Ended


@pytest.fixture(params=["sqlite", "postgresql"])
def each_stage(request: pytest.FixtureRequest, valkey_url: str) -> Iterator[Stage]:
    name = {"sqlite": "sqlite_url", "postgresql": "pg_url"}[request.param]
    made = Stage(request.getfixturevalue(name), valkey_url)
    yield made
    made.close()


def found(stage: Stage, *queues: str, url: str | None = None) -> list[str]:
    """Return the doctor's findings about the inbox."""
    given = ["--inbox", url or stage.database_url, "--redis", stage.redis_url, "--json"]
    result = CliRunner().invoke(root, ["doctor", *queues, *given])
    assert isinstance(result.exception, SystemExit | None), result.exception
    reports = json.loads(result.stdout)
    says = [each["says"] for r in reports for each in r["left"] if each["kind"] == "inbox"]
    says += [report["error"] for report in reports if report["error"]]
    assert (result.exit_code == 1) >= bool(says)
    return says


def test_the_doctor_reports_no_finding_for_an_inbox_whose_relay_works(each_stage: Stage) -> None:
    stage = each_stage
    assert found(stage) == [], "no relay has used it yet"
    stage.insert("a", "b")
    stage.hand_over()
    stage.insert("c")
    assert found(stage) == []
    result = CliRunner().invoke(
        root, ["doctor", "--inbox", stage.database_url, "--redis", stage.redis_url]
    )
    assert "inbox: all agrees" in result.stdout


def test_the_doctor_reports_waiting_rows_and_parked_rows(each_stage: Stage) -> None:
    stage = each_stage
    stage.insert("bad", args="[")
    stage.hand_over()
    stage.insert("a", "b")
    stage.age_rows(120)
    waits, parked = sorted(found(stage))
    assert "queue mail: 1 row of the inbox is parked" in waits
    assert (
        "queue mail: 2 rows wait in the inbox, the oldest for 2 min, and no relay takes" in parked
    )
    stage.insert("c", queue="other")
    stage.drain()
    stage.client.run(stage.client.calls.enqueue.many([]))
    stage.hand_over()
    assert found(stage, "other") == [], "the findings of the named queues"


def test_the_doctor_reports_an_inbox_database_that_was_set_back_to_an_older_state(
    each_stage: Stage,
) -> None:
    stage = each_stage
    with stage.relay() as relay:
        stage.insert("a")
        finish(relay)
        set_back = stage.saved()
        stage.insert("b")
        finish(relay)
    assert found(stage) == []
    set_back()
    (says,) = found(stage)
    assert "Redis has batch 2 of the relay's last slot, and the database only batch 1" in says
    assert "set back" in says


@pytest.mark.parametrize("lost", ["all", "the last batch"])
def test_the_doctor_reports_that_redis_lacks_the_last_batch(stage: Stage, lost: str) -> None:
    stage.insert("a")
    with stage.relay() as relay:
        finish(relay)
        stage.insert("b")
        finish(relay)
    command = ["FLUSHALL"]
    if lost == "the last batch":
        command = [
            "HSET",
            f"rqc:{{{QUEUE}}}:slots",
            stage.relay_row().slot or "",
            "1 9999999999999",
        ]
    stage.client.run(stage.client.calls.delivery.ask([command], QUEUE))
    (says,) = found(stage)
    assert f"Redis has {'nothing' if lost == 'all' else 'only batch 1'} of the relay's last" in says
    assert "and the database batch 2" in says

    stage.insert("c")
    stage.hand_over()
    assert found(stage) == [], "the relay went on"


def test_the_doctor_reports_nothing_about_an_old_call_slot_that_redis_has_forgotten(
    stage: Stage,
) -> None:
    stage.insert("a")
    stage.hand_over()
    stage.client.run(stage.client.calls.delivery.ask([["FLUSHALL"]], QUEUE))
    stage.age_batches(30 * 86_400)
    assert found(stage) == []


def test_the_doctor_reports_no_finding_for_a_batch_that_has_not_arrived_yet(stage: Stage) -> None:
    stage.insert("a")
    with pytest.raises(Ended):
        stage.hand_over(at("committed", 1, end))
    stage.age_batches()
    assert found(stage) == []


def test_the_doctor_reports_that_redis_lacks_the_call_slot_of_a_working_relay(
    stage: Stage,
) -> None:
    stage.insert("a")
    with stage.relay(at("committed", 3, end)) as relay, pytest.raises(Ended):
        finish(relay)
        stage.insert("b")
        finish(relay)
    stage.age_batches()
    assert found(stage) == []
    stage.client.run(stage.client.calls.delivery.ask([["FLUSHALL"]], QUEUE))
    (says,) = found(stage)
    assert "Redis has nothing of the relay's last slot" in says


def test_if_redis_refused_a_batch_the_doctor_reports_only_the_parked_row(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.insert("a")

    def refuse(*_: object) -> None:
        raise BadArguments(queue=QUEUE, what="no")

    with stage.relay() as relay:
        monkeypatch.setattr(relay._client, "run", refuse)
        finish(relay)
    assert "a" in stage.parked()
    (says,) = found(stage)
    assert "is parked" in says


def test_the_doctor_reports_altered_rows_and_a_moved_inbox(stage: Stage) -> None:
    stage.insert("a")
    stage.hand_over()
    stage.sql("UPDATE rqc_relay SET ids = '{'")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    place, damage = found(stage)
    assert "is a copy, or it was moved" in place
    assert "not a JSON array of ids" in damage
    stage.sql("UPDATE rqc_relay SET ids = NULL, number = 'x'")
    assert len(found(stage)) == 2


def test_the_doctor_reports_a_file_that_a_relay_could_not_write(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_errors, "missing", lambda path: f"user shop may not write {path}")
    (says,) = found(stage)
    assert says == f"a relay cannot work: user shop may not write {stage.session.address.database}"


def test_the_doctor_reports_a_sequence_of_ids_that_is_behind_the_rows(on_postgres: Stage) -> None:
    """Checks a logical replica that took over with the rows, and without the state of the sequence.

    An INSERT then gets the id of an existing row.
    """
    stage = on_postgres
    stage.insert("a", "b")
    assert found(stage) == []
    stage.sql("SELECT setval(pg_get_serial_sequence('rqc_inbox', 'id'), 1, false)")
    (says,) = found(stage)
    assert "the sequence of id is behind the rows" in says
    stage.sql(says.partition("`")[2].partition("`")[0])
    assert found(stage) == []
    stage.insert("c")
    assert stage.rows() == ["a", "b", "c"]


def test_the_doctor_writes_nothing_into_an_inbox(stage: Stage) -> None:
    stage.insert("a")
    before = [stage.sql(f"SELECT * FROM {table}") for table in ("rqc_inbox_place", "rqc_relay")]
    found(stage)
    assert before == [
        stage.sql(f"SELECT * FROM {table}") for table in ("rqc_inbox_place", "rqc_relay")
    ]


def test_the_doctor_names_the_command_that_creates_missing_tables(
    stage: Stage, tmp_path: Path
) -> None:
    stage.sql("DROP TABLE rqc_inbox_parked")
    (says,) = found(stage)
    assert "rq-core inbox migrate" in says
    (says,) = found(stage, url=str(tmp_path / "no.db"))
    assert "there is no such file" in says


@pytest.mark.parametrize(
    ("wanted", "instead", "says"),
    [
        ("args TEXT NOT NULL DEFAULT '{}'", "args TEXT NOT NULL", "column args has no default"),
        ("task TEXT NOT NULL", "task TEXT", "column task may be null"),
        ("task TEXT NOT NULL", "task BLOB NOT NULL", "column task has the type BLOB, not TEXT"),
        ("options TEXT", "options TEXT NOT NULL", "column options must not be null"),
        ("UNIQUE (queue, job_id)", "CHECK (1)", "no unique key (queue, job_id)"),
        (" AUTOINCREMENT", "", "column id has no AUTOINCREMENT"),
        ("  PRIMARY KEY (queue, id, job_id)", "  CHECK (1)", "no unique key (queue, id, job_id)"),
        ("ON rqc_inbox_parked (job_id)", "ON rqc_inbox_parked (why)", "no index on (job_id)"),
        ("queue TEXT PRIMARY KEY NOT NULL", "queue TEXT NOT NULL", "no unique key (queue)"),
    ],
)
def test_the_doctor_reports_a_table_of_sqlite_that_differs_from_the_migration(
    stage: Stage, tmp_path: Path, wanted: str, instead: str, says: str
) -> None:
    url = str(tmp_path / "other.db")
    statements = ";".join(ddl(url))
    assert wanted in statements
    made = sqlite3.connect(url)
    made.executescript(statements.replace(wanted, instead, 1))
    made.close()
    (line,) = found(stage, url=url)
    assert says in line
    assert "rq-core inbox ddl" in line


@pytest.mark.slow
def test_the_doctor_reports_tables_of_postgresql_that_differ_from_the_migration(
    postgres_url: str, valkey_url: str
) -> None:
    stage = Stage(postgres_url, valkey_url)
    for statement in (
        "ALTER TABLE rqc_inbox ALTER args DROP DEFAULT",
        "ALTER TABLE rqc_inbox ALTER task TYPE varchar(64)",
        "ALTER TABLE rqc_inbox ALTER options SET NOT NULL",
        "ALTER TABLE rqc_inbox ALTER id DROP IDENTITY",
        "ALTER TABLE rqc_inbox DROP CONSTRAINT rqc_inbox_queue_job_id_key",
        "ALTER TABLE rqc_relay ALTER relayed DROP NOT NULL",
        "DROP INDEX rqc_inbox_parked_job",
    ):
        stage.sql(statement)
    said = "\n".join(found(stage))
    stage.close()
    for says in (
        "column args has no default", "column task has the type character varying(64), not text",
        "column options must not be null", "column id has no default",
        "rqc_inbox has no unique key (queue, job_id)", "column relayed may be null", "no index on (job_id)",
    ):  # fmt: skip
        assert says in said
    assert said.count("\n") == 6
