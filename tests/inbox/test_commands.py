"""The commands about an inbox, a relay beside workers, and the comparison of an inbox with the audit log."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.model import plugins
from rq_core.process.companion import Companion
from sql_audit.inbox.verify import AGAIN, LESS, MORE, Comparison, compare_with_log
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.cli.test_printed import assert_harmless
from tests.kit.command import command
from tests.kit.inbox import QUEUE, Stage
from tests.kit.wait import wait_until


def printed(*words: str) -> str:
    result = command("inbox", *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_inbox_commands_hand_rows_over_and_show_and_change_parked_rows(
    stage: Stage,
) -> None:
    url = stage.database_url
    stage.insert("a", "b")
    stage.insert("bad", args="[")
    printed("run", url, "--redis", stage.redis_url, "--once")

    (state,) = json.loads(printed("status", url, "--json"))
    assert (state["queue"], state["rows"], state["parked"], state["relayed"]) == (QUEUE, 0, 1, 2)
    assert QUEUE in printed("status", url)
    (row,) = json.loads(printed("parked", url, "--json"))
    assert (row["job_id"], row["why"][:11]) == ("bad", "args is not")
    assert "args is not" in printed("parked", url)
    stage.sql("UPDATE rqc_inbox_parked SET args = '{}'")
    assert json.loads(printed("retry", url, "bad", "--json")) == ["bad"]
    stage.hand_over()
    assert stage.drain() == ["a", "b", "bad"]

    stage.insert("worse", args="[")
    stage.hand_over()
    assert command("inbox", "drop", url, "unknown").exit_code == 1
    assert command("inbox", "drop", url).exit_code == 2, "which rows?"
    assert "1 row deleted" in printed("drop", url, "--all")
    assert stage.parked() == {}


def test_the_error_of_missing_inbox_tables_names_the_command_that_creates_them(
    tmp_path: Path,
) -> None:
    result = command("inbox", "status", str(tmp_path / "app.db"))
    assert result.exit_code != 0
    assert f"rq-core inbox migrate {tmp_path / 'app.db'}" in result.stderr
    assert list(tmp_path.iterdir()) == [], "a command that reads creates no file"


def test_the_url_of_an_inbox_may_name_an_asyncio_driver(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'app.db'}"
    assert "created rqc_inbox" in printed("migrate", url)
    assert "the inbox is empty" in printed("status", url)


def test_the_settle_command_with_the_option_copy_parks_the_rows_of_a_copied_inbox(
    stage: Stage,
) -> None:
    stage.insert("a")
    stage.sql("UPDATE rqc_inbox_place SET place = 'file 1/1'")
    url = stage.database_url
    refused = command("inbox", "run", url, "--redis", stage.redis_url, "--once")
    assert "rq-core inbox settle" in refused.stderr
    assert "1 row parked" in printed("settle", url, "--copy")
    printed("run", url, "--redis", stage.redis_url, "--once")
    assert stage.drain() == []


@pytest.mark.parametrize("is_used", [True, False])
def test_the_settle_command_refuses_the_option_copy_for_the_original_inbox(
    stage: Stage, is_used: bool
) -> None:
    if is_used:
        stage.hand_over()
    stage.insert("a")
    url = stage.database_url
    refused = command("inbox", "settle", url, "--copy")
    assert refused.exit_code == 1
    (line,) = refused.stderr.splitlines()
    assert ("as before" if is_used else "no relay has used it yet") in line
    assert "--same-place" in line
    assert stage.rows() == ["a"]

    assert command("inbox", "settle", url, "--moved", "--same-place").exit_code == 2
    assert "1 row parked" in printed("settle", url, "--copy", "--same-place")


def test_the_parked_command_prints_readable_lines_on_a_narrow_terminal(stage: Stage) -> None:
    stage.insert("01a21647e0997000ab860e6bb1389482", task="shop.jobs.send_the_mail", args="[")
    stage.hand_over()
    shown = command("inbox", "parked", stage.database_url, COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "01a21647e0997000ab860e6bb1389482" in shown.splitlines()[0]
    assert "task shop.jobs.send_the_mail, parked at 2" in " ".join(shown.split())


@pytest.mark.slow
def test_the_relay_beside_a_worker_hands_rows_over_until_the_worker_ends_the_relay(
    stage: Stage,
) -> None:
    command_line = plugins.relay_command()
    words, environment = command_line(stage.redis_url, "rqc", stage.database_url)
    assert "--until-stdin-ends" in words
    assert stage.database_url not in words
    assert environment["RQ_CORE_INBOX_URL"] == stage.database_url

    relay = Companion(
        "the relay", partial(command_line, stage.redis_url, "rqc", stage.database_url)
    )
    relay.start()
    stage.insert("a")
    wait_until(lambda: not stage.rows(), "the row was handed over", timeout=30)
    relay.end()

    assert relay.status == 0
    assert stage.drain() == ["a"]


HOSTILE = (
    "\x1b[2J\x1b]0;title\x07\r\nrq-core: all is well\n\x9b31m\u202e[red]\x08\x7f" + "x" * 5_000
)


def test_inbox_commands_and_log_lines_show_rows_without_control_characters(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    url = stage.database_url
    stage.insert(HOSTILE, queue=HOSTILE, task=HOSTILE, args=HOSTILE)
    stage.insert("a", task=HOSTILE, options=HOSTILE)
    stage.hand_over()
    calls = [
        ["status", url], ["parked", url], ["retry", url, HOSTILE], ["status", url],
        ["run", url, "--redis", stage.redis_url, "--once"], ["drop", url, HOSTILE, "b" + HOSTILE],
        ["settle", url, "--moved"],
    ]  # fmt: skip
    for words in calls:
        output = CliRunner().invoke(root, ["inbox", *words], color=True).output
        assert_harmless(output)
    assert_harmless(caplog.text)


def test_the_doctor_shows_queues_of_rows_without_control_characters(stage: Stage) -> None:
    stage.insert("a", queue=HOSTILE, task=HOSTILE, args="[")
    stage.hand_over()
    stage.sql("UPDATE rqc_relay SET slot = ?, number = 1, ids = ?", HOSTILE, HOSTILE)
    words = ["doctor", "--inbox", stage.database_url, "--redis", stage.redis_url]
    output = CliRunner().invoke(root, words, color=True).output
    assert "is parked" in output
    assert_harmless(output)


# The log.


@pytest.fixture
def proves(stage: Stage, tmp_path: Path) -> Iterator[Callable[[], Comparison]]:
    """Hand three rows over. Yield a function that mirrors the queue and then compares the inbox with the log."""
    path = str(tmp_path / "log.db")
    database = Database(path)
    source = open_source(stage.redis_url, "rqc")
    run_mirror(source, path, stop=threading.Event(), once=True)
    stage.insert("a", "b", "c")
    stage.hand_over()

    def compared() -> Comparison:
        run_mirror(source, path, stop=threading.Event(), once=True)
        (found,) = compare_with_log(stage.session, database.readers, wait_s=0)
        return found

    yield compared
    source.close()
    database.close()


def test_the_audit_log_has_an_event_for_each_row_that_a_relay_has_handed_over(
    proves: Callable[[], Comparison],
) -> None:
    assert proves() == Comparison(QUEUE, 3, 3, None)


def test_the_comparison_of_inbox_and_audit_log_finds_an_altered_count_of_handed_over_rows(
    stage: Stage, proves: Callable[[], Comparison]
) -> None:
    stage.sql("UPDATE rqc_relay SET relayed = relayed + 1")
    assert proves().finding == LESS
    stage.sql("UPDATE rqc_relay SET relayed = relayed - 2")
    assert proves().finding == MORE


def test_the_comparison_of_inbox_and_audit_log_finds_a_row_that_was_inserted_again_after_its_handover(
    stage: Stage, proves: Callable[[], Comparison]
) -> None:
    assert stage.drain() == ["a", "b", "c"]
    set_back = stage.saved()
    stage.insert("a")
    stage.hand_over()
    found = proves()
    assert found.finding is None, "as many rows as events"
    assert found.notes == (AGAIN.format(1),)
    set_back()
    assert proves().finding == MORE


def test_the_comparison_of_inbox_and_audit_log_finds_a_row_that_was_deleted_from_its_batch(
    stage: Stage, proves: Callable[[], Comparison]
) -> None:
    stage.insert("d", "e")

    def on_step(step: str) -> None:
        if step == "committed" and stage.relay_row().ids and "d" in stage.rows():
            stage.sql("DELETE FROM rqc_inbox WHERE job_id = 'd'")
            raise RuntimeError("the relay ends")

    with pytest.raises(RuntimeError):
        stage.hand_over(on_step)
    stage.age_batches()
    stage.hand_over()
    assert stage.drain() == ["a", "b", "c", "e"]
    assert proves().finding == LESS
