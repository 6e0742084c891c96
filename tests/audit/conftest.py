"""Fixtures: an outbox in a real Valkey, an audit database, and the mirror that copies the outbox into the database."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rq_core.connections.client import Client
from sql_audit.mirror import service
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.store.connection.database import Database
from tests.kit.matrix import run_once, slow_again
from tests.kit.outbox import StreamSource, StreamWriter
from tests.kit.schemas import lay_schema
from tests.kit.servers import Engine, engines

QUEUE = "mail"
HERE = Path(__file__).parent
ON_SQLITE = {
    # A fork reads the log by the statement of `audit history`.
    "test_job_forks.py",
    # Verify judges rows in Python. That it gets the same rows from PostgreSQL: test_verify_real.py, and each test that
    # proves a log there at its end.
    "test_lies.py",
    # So is what the replay says of schedules.
    "test_verify_reports_a_false_schedule_event_in_real_sql_despite_a_forged_chain",
    # What a prune, an attachment and a deletion do to schedules is the same on both.
    "test_schedules_kept.py",
    # What is said of an instant is decided in Python. That both databases answer: test_schedule_ticks.py.
    "test_schedule_history.py",
    # How an index comes to lack rows differs: on PostgreSQL among the lies about its catalog.
    "test_verify_finds_an_index_that_lacks_a_job",
    "test_verify_finds_rows_of_a_queue_that_was_never_mirrored",
    "test_verify_finds_a_changed_row_despite_a_forged_chain",
    "test_verify_finds_minutes_with_a_wrong_count_of_claims",
    "test_verify_finds_epoch_rows_without_events_despite_a_forged_chain",
    "test_verify_finds_a_change_to_the_events_or_the_record_of_a_prune",
    # A mirror that an exception ends, at each step. On PostgreSQL it is killed at each: test_crash.py, and over losses
    # epochs/test_after_a_loss.py.
    "test_crash_losses.py",
    # What may be put back, with which name and line, is decided in Python. That it is: restore/test_restore.py.
    "test_names.py",
    "test_schedules.py",
    "test_lines_put_back.py",
    # Damage is found in Python. That PostgreSQL returns all rows of an undamaged queue: the other test of the file.
    "test_a_planted_damage_is_found_and_repaired_if_it_can_be_repaired",
    # Python code finds what a broken script has left, and decides whether verify accepts the repair.
    "test_ripe_jobs.py",
    # So it compares boxes, and decides which signals are lost.
    "test_forged_boxes.py",
    "test_signals_again.py",
    "test_changed_log_not_copied.py",
    "test_large_repairs.py",
    # Which words of a line are false is decided in Python. The rows: test_verify_real.py.
    "test_correct_results_names_and_ids_are_never_reported_as_differences",
    # What rates owe is in Redis, and what the log says of it is judged in Python.
    "test_debts_kept.py",
    # SQLite counts the steps of its machine; the statements are the same.
    "test_a_report_does_not_sort_claims",
    "test_percentiles_are_computed_with_the_nearest_rank_method",
    # So is what an entry in quarantine leaves open, and a row that cannot be read.
    "test_an_unreadable_row_in_sql_does_not_end_the_comparison",
    "test_a_difference_after_an_entry_in_quarantine_is_not_reported_as_a_violation",
    # How claims agree with breakers is decided in Python.
    "test_lies_about_breakers.py",
    # Whose queues they are is decided in Python, and in statements that both databases have.
    "test_an_empty_redis_is_refused_while_a_mirror_serves_the_queues",
    "test_the_old_server_is_refused_after_a_total_loss",
    "test_a_running_mirror_stops_when_the_queues_are_adopted_by_another_source",
    "test_the_queues_of_a_renamed_prefix_can_be_adopted",
    "test_a_deleted_queue_may_be_created_again_on_another_source",
    # Which errors are the mirror's own does not depend on the database.
    "test_a_bug_of_the_mirror_puts_nothing_into_quarantine",
}
"""The files and tests that run only on the first database. A comment before each group gives the reason."""


SLOW_ON_POSTGRESQL = {
    # They use the statements of test_mirror.py, test_crash.py and test_verify_real.py. What follows from the rows is
    # decided in Python.
    "epochs", "restore",
    "test_poison.py", "test_prune.py", "test_prune_losses.py", "test_verify.py", "test_results_mended.py",
    "test_unread_rows.py", "test_settings_compared.py", "test_compared_while_busy.py", "test_off_and_on.py",
    "test_damages.py", "test_saved_steps.py", "test_edits.py", "test_forgetful_redis.py",
}  # fmt: skip
"""The folders and files whose tests `scripts/test` runs only on SQLite. CI runs them on PostgreSQL, too."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name in SLOW_ON_POSTGRESQL:
        slow_again(items, HERE / name, lambda *_: True)
    run_once(
        items, HERE, lambda file, test: not ON_SQLITE.isdisjoint((file, test.partition("[")[0]))
    )
    # How Redis is read does not depend on the database; in pages it is read more often.
    run_once(
        items,
        HERE,
        lambda file, test: file == "test_compared_while_busy.py" and "-at once]" in test,
    )


@pytest.fixture
def engine(audit_url: str) -> Engine:
    """Use one engine with each kind of database. The effects of a loss do not depend on the pair of engine and
    database."""
    return engines()[0 if audit_url.startswith("sqlite") else -1]


@pytest.fixture(autouse=True)
def _no_mirror_of_another_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time for which a mirror that finds an empty Redis looks for another running mirror."""
    monkeypatch.setattr(service, "RECLAIM_S", 0.01)


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    with Client(valkey_url) as client:
        yield client


@pytest.fixture
def source(valkey_url: str) -> Iterator[StreamSource]:
    source = StreamSource(valkey_url)
    yield source
    source.close()


@pytest.fixture
def writer(source: StreamSource) -> StreamWriter:
    return StreamWriter(source, QUEUE)


@pytest.fixture
def database(audit_url: str) -> Iterator[Database]:
    """Yield a migrated audit database of each kind."""
    database = Database(audit_url)
    lay_schema(database)
    yield database
    database.close()


@pytest.fixture
def make_mirror(source: StreamSource, database: Database) -> Callable[..., Mirror]:
    def make(queue: str = QUEUE, limits: BatchLimits | None = None) -> Mirror:
        return Mirror(source, database, queue, limits=limits)

    return make


@pytest.fixture
def mirror(make_mirror: Callable[..., Mirror]) -> Mirror:
    return make_mirror()
