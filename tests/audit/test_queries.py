"""Queries of the log. The answer to each query is the same on both databases."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from sqlalchemy import text

from sql_audit.errors import HistoryUnknown
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import history, reports, window
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.log_queues import origins
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.outbox import StreamSource, StreamWriter, enqueue
from tests.kit.schemas import lay_schema


def hundred_claims(writer: StreamWriter) -> None:
    """Make claims with the numbers n from 1 to 100. The job of claim n waits n ms and runs 2n ms."""
    begin = writer.now_ms
    ids = [f"j{n:03}" for n in range(1, 101)]
    writer.now_ms = begin - 1
    enqueue(writer, *ids)
    for n, job_id in enumerate(ids, start=1):
        writer.now_ms = begin + n - 1
        fence = writer.jobs("claimed", [job_id, 1], by="w-1")
        writer.now_ms = begin + 3 * n - 1
        writer.jobs("succeeded", [job_id, fence], by="w-1")


def test_a_report_counts_and_measures_claims(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    hundred_claims(writer)
    enqueue(writer, "bad", "lost", "given-back", task="resize")
    fence = writer.jobs("claimed", ["bad", 1], ["lost", 1])
    error = {"type": "ValueError", "message": "no"}
    writer.jobs("retried", ["bad", fence, None, 1, error])
    writer.jobs("lease_expired", ["lost", fence, "w-1", 1, "ready"], by="w-2")
    fence = writer.jobs("claimed", ["bad", 2])
    writer.jobs("died", ["bad", fence, "attempts", 2, error])
    fence = writer.jobs("claimed", ["given-back", 1])
    writer.jobs("rolled_back", ["given-back", fence, None, "shutdown"])
    auditlog.drain(mirror)

    report = reports.report(database.readers, queue=QUEUE)

    resize, send = report.tasks
    assert (send.jobs, send.succeeded, send.claims, send.retries) == (100, 100, 100, 0)
    assert (send.waited_p50_ms, send.waited_p95_ms) == (50, 95)
    assert (send.ran_p50_ms, send.ran_p95_ms) == (100, 190)
    assert send.throughput is None
    assert (resize.jobs, resize.claims, resize.retries) == (3, 4, 1)
    assert (resize.lease_expired, resize.rolled_back) == (1, 1)
    assert (resize.dead, resize.succeeded) == (1, 0)
    assert resize.throughput is None
    assert [(s.job_id, s.ran_ms) for s in report.slowest[:2]] == [("j100", 200), ("j099", 198)]
    assert (report.jobs, report.claims, report.dead) == (103, 104, 1)
    (mark,) = report.watermarks
    assert mark.number == writer.seq
    assert "complete through epoch" in str(mark)


@pytest.mark.parametrize("ask", [reports.report, window.report_within], ids=["whole", "window"])
def test_a_report_has_a_throughput_only_for_a_second_or_longer(
    ask: Callable[..., reports.Report], writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that a report about one job in 1 ms does not state 1,000 jobs per second."""

    def throughput(job_id: str, later_ms: int) -> float | None:
        writer.now_ms = begin + later_ms - 1
        writer.jobs("succeeded", [job_id, writer.jobs("claimed", [job_id, 1])])
        auditlog.drain(mirror)
        (task,) = ask(database.readers).tasks
        return task.throughput

    begin = writer.now_ms
    enqueue(writer, "a", "b", "c")

    assert throughput("a", 10) is None
    assert throughput("b", 900) is None
    assert throughput("c", 3_010) == pytest.approx(1, abs=0.01)


def test_a_report_of_an_empty_log_is_empty(database: Database) -> None:
    report = reports.report(database.readers)

    assert (report.tasks, report.slowest, report.watermarks) == ([], [], [])


def test_a_history_is_ordered_and_readable(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.life("a", "b")
    writer.begin(writer.epoch + 5, "replid_changed", writer.log[-1][0])
    writer.jobs("settlement_refused", ["a", "1-1", "complete", "gone"], by="w-2")
    auditlog.drain(mirror)

    events = history.history(database.readers, "a")

    assert [e.type for e in events] == ["enqueued", "claimed", "succeeded", "settlement_refused"]
    assert [e.claim for e in events] == [None, 1, 1, None]
    assert {e.task for e in events} == {"send"}
    assert events[3].detail == {"fence": "1-1", "outcome": "complete", "reason": "gone"}
    with pytest.raises(HistoryUnknown, match="nonesuch"):
        history.history(database.readers, "nonesuch")
    with pytest.raises(HistoryUnknown, match="'web'"):
        history.history(database.readers, "a", queue="web")


def test_a_tail_continues_after_the_last_event_that_the_caller_has_seen(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.life("a", "b")
    auditlog.drain(mirror)
    seen = history.queue_tail(database.readers, QUEUE, 3)
    writer.life("c")
    auditlog.drain(mirror)

    more = history.after(database.readers, QUEUE, seen[-1].place)

    assert [(e.type, e.job_id) for e in seen] == [
        ("claimed", "b"), ("succeeded", "a"), ("succeeded", "b"),
    ]  # fmt: skip
    assert [(e.type, e.job_id) for e in more] == [
        ("enqueued", "c"), ("claimed", "c"), ("succeeded", "c"),
    ]  # fmt: skip


def test_the_readable_views_show_times_as_text(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.now_ms = 1_795_225_746_503
    writer.life("a")
    auditlog.drain(mirror)

    events = auditlog.rows(database, "SELECT * FROM job_event_readable ORDER BY epoch, seq")
    attempt = auditlog.one(database, "SELECT * FROM job_attempt_readable")
    job = auditlog.one(database, "SELECT * FROM job_readable")

    assert events[1]["at"] == "2026-11-21 01:49:06.504"
    assert attempt["claimed_at"] == "2026-11-21 01:49:06.505"
    assert (job["state"], job["finished_at"]) == ("succeeded", "2026-11-21 01:49:06.506")


# Commands.


def call(*words: str, **env: str) -> Result:
    return audit(*words, **{"RQ_CORE_AUDIT_URL": None, **env})


@pytest.fixture
def log(writer: StreamWriter, mirror: Mirror, database: Database) -> str:
    """Return the URL of a database with a small log."""
    writer.life("a", "b")
    enqueue(writer, "[red]c")
    auditlog.drain(mirror)
    return database.address.render_as_string(hide_password=False)


def test_history_prints_a_table_or_json(log: str) -> None:
    table = call("history", "a", "--audit", log)
    document = call("history", "a", "--json", RQ_CORE_AUDIT_URL=log)

    assert table.exit_code == 0, table.output
    assert "succeeded" in table.output
    assert "complete through epoch" in table.output
    said = json.loads(document.stdout)
    assert [e["type"] for e in said["events"]] == ["enqueued", "claimed", "succeeded"]
    assert said["watermarks"][0]["queue"] == QUEUE


@pytest.mark.parametrize("detail", ["{bad", "[1]"])
def test_an_unreadable_row_does_not_hide_other_rows(
    detail: str, writer: StreamWriter, source: StreamSource, sqlite_url: str
) -> None:
    """Checks each command that reads the row. The command prints all readable rows without a traceback."""
    database = Database(sqlite_url)
    lay_schema(database)
    writer.life("a", "b")
    auditlog.drain(Mirror(source, database, QUEUE))
    with sqlite3.connect(database.path) as by_hand:
        by_hand.execute("DROP TRIGGER job_event_no_update")
        by_hand.execute("UPDATE job_event SET detail = ?", (detail,))
        by_hand.execute("UPDATE job_attempt SET scopes = ? WHERE job_id = 'a'", (detail,))
    by_hand.close()

    for words in (
        ["tail"],
        ["history", "b"],
        ["why", "a"],
        ["at", str(writer.now_ms - 1)],
        ["report"],
    ):
        done = call(*words, "--audit", sqlite_url)
        assert done.exit_code == 0, (words, done.output)
    with database.readers.connect() as connection:
        assert origins(connection)[QUEUE].goes_on
    database.close()


@pytest.mark.parametrize("width", [80, 400])
def test_a_history_shows_its_details_on_a_narrow_terminal(
    writer: StreamWriter,
    mirror: Mirror,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    """Checks terminals of 80 and 400 columns. The error of a dead job stays readable."""
    enqueue(writer, "a-job-with-a-long-name")
    fence = writer.jobs("claimed", ["a-job-with-a-long-name", 1], by="w-on-a-host-with-a-long-name")
    error = {"type": "ValueError", "message": "no such user [red] at all"}
    writer.jobs("died", ["a-job-with-a-long-name", fence, "gave_up", 1, error])
    auditlog.drain(mirror)
    monkeypatch.setattr("sql_audit.cli.events.terminal", lambda: Console(width=width))

    url = database.address.render_as_string(hide_password=False)
    said = call("history", "a-job-with-a-long-name", "--audit", url).output

    assert "ValueError: no such user [red] at all" in " ".join(said.split())
    assert max(len(line) for line in said.splitlines()) <= width
    assert len(said.splitlines()) < 30


def test_a_history_shows_the_traceback_of_a_failure(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that the history has the traceback, also without --json."""
    enqueue(writer, "a")
    fence = writer.jobs("claimed", ["a", 1])
    lines = 'Traceback (most recent call last):\n  File "/srv/shop/tasks.py", line 7, in pay\nE: \x1b[31m'
    error = {"type": "ValueError", "message": "no month 13", "traceback": lines}
    writer.jobs("died", ["a", fence, "gave_up", 1, error])
    auditlog.drain(mirror)
    url = database.address.render_as_string(hide_password=False)

    told, ends = call("history", "a", "--audit", url).output, call("tail", "--audit", url).output

    assert "ValueError: no month 13 (shop/tasks.py:7)" in " ".join(told.split())
    assert (
        "traceback of the last error\n  Traceback (most recent call last):\n"
        '    File "/srv/shop/tasks.py", line 7, in pay\n  E: \\x1b[31m\n'
    ) in told
    assert "error=ValueError: no month 13 (shop/tasks.py:7)" in ends


def test_texts_of_jobs_are_not_interpreted_as_markup(log: str) -> None:
    assert "[red]c" in call("tail", "--audit", log).output
    assert "job [red]c" in call("history", "[red]c", "--audit", log).output


def test_report_prints_tables_or_json(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = call("report", "--audit", log, "--queue", QUEUE)
    document = call("report", "--audit", log, "--json")

    assert table.exit_code == 0, table.output
    assert "rolled back" in table.output
    assert "waited p50" in table.output
    assert "slowest" in table.output
    (task,) = json.loads(document.stdout)["tasks"]
    assert (task["task"], task["jobs"], task["succeeded"]) == ("send", 3, 2)


def test_commands_accept_relative_times_and_dates(log: str) -> None:
    """Checks that `at` and `report` accept "10m ago" and "00:00", and not only dates."""
    moments = ("10m ago", "00:00", "2026-11-21 10:00")
    for words in (
        *(["at", moment] for moment in moments),
        *(["report", "--since", "1y ago", "--until", moment] for moment in moments),
    ):
        done = call(*words, "--queue", QUEUE, "--audit", log)

        assert done.exit_code == 0, (words, done.output)


@pytest.mark.parametrize("columns", ["60", "80"])
def test_a_report_on_a_narrow_terminal_names_the_hidden_columns(
    log: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)

    table = call("report", "--audit", log, "--queue", QUEUE).output

    assert "…" not in table
    assert "succeeded" in table
    assert "no room for: " in table
    assert max(map(len, table.partition("no room")[0].splitlines())) <= int(columns)


def test_tail_prints_one_line_per_event(log: str) -> None:
    lines = call("tail", "--audit", log, "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["succeeded", "enqueued"]


def test_a_tail_shows_new_events_and_new_queues(
    source: StreamSource,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    database: Database,
) -> None:
    """Checks that `tail -n 0 -f` begins with the next event, and shows queues that are created later."""
    writer.life("a")
    auditlog.drain(make_mirror())
    (last,) = history.queue_tail(database.readers, QUEUE, 1)
    following = history.follow(database.readers, None, {QUEUE: last.place})
    only = history.follow(database.readers, QUEUE, {QUEUE: last.place})
    assert (next(following), next(only)) == ([], [])

    enqueue(writer, "b")
    enqueue(StreamWriter(source, "other"), "c")
    for name in (QUEUE, "other"):
        auditlog.drain(make_mirror(name))

    assert [(e.queue, e.type) for e in next(following)] == [
        (QUEUE, "enqueued"), ("other", "epoch_started"), ("other", "enqueued"),
    ]  # fmt: skip
    assert [(e.queue, e.job_id) for e in next(only)] == [(QUEUE, "b")]
    assert (next(following), next(only)) == ([], [])


def test_a_tail_of_0_lines_prints_nothing(log: str) -> None:
    assert call("tail", "--audit", log, "-n", "0", "--json").stdout == ""


def test_each_command_reports_that_nothing_is_mirrored_yet(database: Database) -> None:
    url = database.address.render_as_string(hide_password=False)

    for command in ("report", "tail", "head", "restore"):
        result = call(command, "--audit", url)

        assert (result.exit_code, result.stdout) == (1, ""), command
        assert "nothing is mirrored yet" in result.stderr, command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["verify", "--head", "abc"], "is not a head"),
        (["verify", "--head", "g" * 64], "is not a head"),
        (["report", "--slowest", "-1"], "-1 is not in the range"),
        (["tail", "-n", "-1"], "-1 is not in the range"),
        (["restore", "--wait", "-1"], "-1.0 is not in the range"),
    ],
)
def test_an_invalid_value_of_an_option_is_refused(words: list[str], said: str, log: str) -> None:
    """Checks a mistyped head. The command reports an error of usage, and no rewritten log."""
    result = call(*words, "--audit", log)

    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_migrate_prints_the_schema_version(audit_url: str) -> None:
    first, second = call("migrate", "--audit", audit_url), call("migrate", "--audit", audit_url)

    assert (first.exit_code, second.exit_code) == (0, 0)
    assert f"schema {migrate.needed()}" in first.output
    assert first.output == second.output


def test_audit_run_once_and_audit_off_work_with_the_real_client(
    valkey_url: str, audit_url: str
) -> None:
    from rq_core.connections.client import Client

    with Client(valkey_url) as client:
        client.run(client.calls.delivery.handshake(QUEUE))

    done = call("run", "--once", "--json", "--redis", valkey_url, "--audit", audit_url)
    off = call("off", QUEUE, "--redis", valkey_url, "--audit", audit_url)

    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"entries": 1, "events": 1, "failures": 0}
    assert off.exit_code == 0, off.output


WRONG: list[tuple[str, int, list[str], str]] = [
    ("no address", 2, ["report"], "`rq-core queues` says which queues have an audit log"),
    ("no file", 1, ["report", "--audit", "{tmp}/nonesuch.db"], "no audit log at"),
    ("not a database", 1, ["report", "--audit", "{tmp}/text.db"], "file is not a database"),
    ("a directory", 1, ["migrate", "--audit", "{tmp}"], "is a directory"),
    ("no such directory", 1, ["migrate", "--audit", "/nonesuch/x.db"], "there is no directory /nonesuch: make it"),
    ("another kind", 2, ["report", "--audit", "mysql://h/d"], "mysql is not supported"),
    ("nobody there", 1, ["report", "--audit", "postgresql://u:pw@127.0.0.1:1/d"], "does not answer"),
    ("in memory", 2, ["run", "--json", "--audit", "sqlite://"], "would be lost"),
    ("unknown job", 2, ["history", "nonesuch", "--audit", "{log}"], "knows no job 'nonesuch'"),
    ("unknown queue", 2, ["report", "--queue", "x", "--audit", "{log}"], "knows no queue 'x'"),
    ("unknown queue to tail", 2, ["tail", "--queue", "x", "--audit", "{log}"], "no queue 'x'"),
    ("no Redis", 1, ["run", "--json", "--once", "--audit", "{tmp}/new.db", "--redis", "redis://127.0.0.1:1"],
        "127.0.0.1:1"),
    ("no Redis URL", 2, ["run", "--json", "--audit", "{tmp}/new.db", "--redis", "nonsense"], "nonsense"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "words", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_each_error_of_an_audit_command_is_one_line(
    status: int,
    words: list[str],
    said: str,
    tmp_path: Path,
    make_sqlite_log: Callable[[], str],
) -> None:
    (tmp_path / "text.db").write_text("this is no database " * 100)
    log = make_sqlite_log() if "{log}" in words else ""

    result = call(*(word.format(tmp=tmp_path, log=log) for word in words))

    assert result.exit_code == status
    assert result.stdout == ""
    assert result.stderr.startswith("rq-core: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert "pw" not in result.stderr


@pytest.fixture
def make_sqlite_log(
    source: StreamSource, writer: StreamWriter, tmp_path: Path
) -> Callable[[], str]:
    def make() -> str:
        database = Database(str(tmp_path / "log.db"))
        lay_schema(database)
        writer.life("a")
        auditlog.drain(Mirror(source, database, QUEUE))
        database.close()
        return str(database.path)

    return make


def test_an_outdated_schema_is_a_one_line_error(
    log: str, monkeypatch: pytest.MonkeyPatch, database: Any
) -> None:
    from sql_audit.store import migrate

    monkeypatch.setattr(migrate, "needed", lambda: "0099")

    result = call("report", "--audit", log)

    assert result.exit_code == 1
    assert "rq-core audit migrate --audit" in result.stderr


def test_a_refusal_by_the_database_is_a_one_line_error(log: str, database: Database) -> None:
    """Checks a missing table. The command prints one line and no traceback."""
    with database.writing() as connection:
        assert connection is not None
        connection.execute(text("ALTER TABLE mirror_cursor RENAME TO gone"))
        connection.commit()

    result = call("report", "--audit", log)

    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith("rq-core: the audit database refuses: ")
    assert "SELECT" not in result.stderr
