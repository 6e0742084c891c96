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
    # So are children. That PostgreSQL returns the same rows: the other tests of test_lost_children.py.
    "test_verify_finds_a_child_that_a_bug_has_lost",
    "test_verify_does_not_judge_how_children_ended_if_a_log_is_incomplete",
    "test_verify_does_not_judge_a_success_that_redis_may_have_forgotten",
    # So is what the replay says of schedules.
    "test_verify_reports_a_false_schedule_event_in_real_sql_despite_a_forged_chain",
    # What a prune, an attachment and a deletion do to schedules is the same on both.
    "test_schedules_kept.py",
    # What is said of an instant is decided in Python. That both databases answer: test_schedule_ticks.py.
    "test_schedule_history.py",
    # How an index comes to lack rows differs: on PostgreSQL among the lies about its catalog.
    "test_verify_finds_an_index_in_which_a_job_is_missing",
    "test_verify_finds_rows_of_a_queue_that_was_never_mirrored",
    "test_verify_finds_a_changed_row_despite_a_forged_chain",
    "test_verify_finds_minutes_with_a_wrong_count_of_claims",
    "test_verify_finds_rows_of_epochs_that_have_no_event_despite_a_forged_chain",
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
    "test_false_records_not_copied.py",
    "test_trusted_batches.py",
    "test_large_repairs.py",
    # Which words of a line are false is decided in Python. The rows: test_verify_real.py.
    "test_correct_results_names_and_ids_are_never_reported_as_differences",
    # What rates owe is in Redis, and what the log says of it is judged in Python.
    "test_debts_kept.py",
    # SQLite says by which index it finds rows.
    "test_events_of_jobs.py",
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

TESTS_SLOW_ON_POSTGRESQL = {
    # How a command prints what it has read, and which options it refuses. The other tests of test_queries.py carry out
    # the statements.
    "test_a_history_shows_its_details_on_a_narrow_terminal",
    "test_a_report_on_a_narrow_terminal_names_the_hidden_columns",
    "test_texts_of_jobs_are_not_interpreted_as_markup",
    "test_report_prints_tables_or_json",
    "test_history_prints_a_table_or_json",
    "test_a_history_shows_the_traceback_of_a_failure",
    "test_commands_accept_relative_times_and_dates",
    "test_a_tail_of_0_lines_prints_nothing",
    "test_an_invalid_value_of_an_option_is_refused",
    "test_a_report_has_a_throughput_only_for_a_second_or_longer",
    # What a moment or a wait means is decided in Python. The statements: the other tests of test_moments.py.
    "test_the_wait_of_a_lost_job_ends_at_the_loss",
    "test_the_wait_of_a_cancelled_job_ends_at_its_cancellation",
    "test_a_wait_names_the_rate_that_held_the_job_back",
    "test_an_unfinished_wait_names_the_holders_of_the_full_scope",
    "test_audit_why_of_an_unknown_job_is_an_error",
    "test_audit_why_and_audit_at_show_delays_suspects_and_lost_workers",
    "test_audit_why_separates_the_delay_of_a_retry_from_the_wait_for_a_worker",
    "test_audit_why_lists_a_zero_length_wait_first_if_a_delay_begins_at_the_same_moment",
    "test_audit_why_says_who_sent_the_signal_that_woke_a_job_and_why",
    "test_audit_why_says_that_a_job_was_woken_by_its_timeout",
    "test_audit_why_says_that_a_parked_job_was_cancelled",
    # What a replay copies is decided in Python and in Redis. That it reads the jobs of both databases in pages: the
    # other tests of test_copied_jobs.py.
    "test_a_replay_leaves_out_jobs_that_are_no_longer_dead",
    "test_a_replay_counts_the_jobs_that_cannot_be_copied_by_reason",
    "test_a_replay_counts_jobs_that_this_app_cannot_copy",
    "test_the_command_leaves_out_jobs_whose_arguments_exceed_its_max_payload",
    "test_a_refused_copy_does_not_use_up_the_limit_of_a_replay",
    "test_a_copied_job_has_its_arguments_in_the_log_only_if_the_original_job_has",
    "test_the_log_says_who_enqueued_a_copy_and_why",
    "test_the_command_replay_copies_only_the_confirmed_number_of_jobs",
    # Rows of either database are judged in Python: which results are right, and which differences are violations.
    "test_verify_reports_a_row_that_differs_from_its_outbox_entry_as_drift",
    "test_verify_finds_a_kept_result_that_differs_from_the_log",
    "test_the_result_of_a_job_that_ran_during_a_gap_is_no_violation",
    "test_a_kept_result_of_an_older_claim_is_reported_as_a_violation_even_after_a_gap",
    "test_results_of_jobs_that_sql_does_not_have_are_no_violation",
    "test_results_that_are_older_than_the_log_are_no_violation",
    "test_verify_reports_an_edited_state_line_as_drift",
    "test_verify_reports_that_the_outbox_lacks_the_last_mirrored_entry",
    "test_verify_reports_an_entry_that_was_deleted_from_the_outbox",
    "test_verify_finds_a_saved_result_that_the_child_did_not_return",
    "test_verify_judges_results_of_children_that_a_fork_copied_from_its_origin",
    "test_verify_finds_a_saved_result_of_a_child_that_has_not_succeeded",
    "test_verify_does_not_judge_the_result_of_a_child_with_an_incomplete_log",
    "test_verify_accepts_a_child_that_succeeds_again_after_its_parent_has_read_its_death",
    "test_verify_accepts_children_that_ended_before_the_clock_was_set_back",
    "test_verify_finds_a_saved_result_whose_child_was_renamed_in_sql",
    "test_verify_does_not_judge_children_whose_log_is_not_in_the_database",
    # What a restore puts back is decided in Python. That it is read from both databases: test_costs_kept.py and
    # test_crash.py.
    "test_a_restore_after_a_total_loss_keeps_pauses_and_failures_of_a_scope",
    "test_a_baseline_keeps_the_pause_of_a_scope",
    "test_a_job_that_was_claimed_while_its_rate_had_no_limit_may_report_its_cost_later",
    "test_a_restore_keeps_a_debt_that_was_reported_after_a_change_of_the_limit",
    # Which queues a mirror serves, and what an operator has removed, is found in Redis.
    "test_only_the_named_queues_are_mirrored",
    "test_the_mirror_service_tries_a_postponed_queue_again_before_it_stops",
    "test_the_mirror_service_does_not_log_a_queue_of_another_database_as_mirrored",
    "test_entries_that_an_operator_removed_are_recorded_and_work_continues",
    "test_a_mirror_checks_all_queues_before_it_attaches_the_first",
    "test_audit_adopt_refuses_a_redis_whose_queue_another_database_mirrors",
    "test_verify_gives_the_reason_only_once_if_it_cannot_compare_redis",
}
"""The tests that `scripts/test` runs only on SQLite. A comment before each group gives the reason."""


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name in SLOW_ON_POSTGRESQL:
        slow_again(items, HERE / name, lambda *_: True)
    slow_again(items, HERE, lambda _, test: test.partition("[")[0] in TESTS_SLOW_ON_POSTGRESQL)
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
