"""The command `rq-core schedule history`. A sentence about each instant says why it was late, skipped or missed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration, tick
from rq_core.worker.ticker import instants_of
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.queries.schedules import ScheduleHistory, schedule_history
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.liar import lying
from tests.kit.seed import Seed

MINUTE = 60_000


class Scene:
    """A queue with its schedules and its log, and workers that fire the schedules at given times."""

    def __init__(self, seed: Seed, client: Client, database: Database) -> None:
        self.seed = seed
        self.database = database
        self.mirror = Mirror(Outbox(client), database, "q", limits=BatchLimits(events=100))

    def put(self, name: str = "beat", job: Any = None, source: str = "live", **rule: Any) -> None:
        made = Declaration.of(
            job or self.seed.job("-", task="ping"), recurrence(name, **(rule or {"every": 60}))
        )
        self.seed.client.run(self.seed.calls.schedules.put("q", [made], source=source))
        auditlog.drain(self.mirror)

    def until_due(self, name: str = "beat", more_ms: int = 0) -> None:
        stored = self.seed.client.run(self.seed.calls.schedules.stored("q", [name]))[name]
        self.seed.advance(stored.due_ms - self.seed.now + more_ms)

    def serve(self, worker: str = "w-1") -> None:
        answer = self.seed.client.run(tick("q", worker))
        while answer.due:
            instants = instants_of(answer.due, answer.now_ms)
            answer = self.seed.client.run(tick("q", worker, instants))

    def history(self, name: str = "beat", count: int = 20) -> ScheduleHistory:
        auditlog.drain(self.mirror)
        return schedule_history(self.database.readers, "q", name, count)

    def says(self, name: str = "beat") -> str:
        return self.history(name).ticks[-1].says


@pytest.fixture
def scene(valkey_url: str, client: Client, database: Database) -> Iterator[Scene]:
    with Seed(valkey_url) as seed:
        made = Scene(seed, client, database)
        auditlog.drain(made.mirror)
        yield made


def test_the_history_says_that_an_instant_was_on_time(
    scene: Scene,
) -> None:
    scene.put()
    scene.until_due()
    scene.serve()
    assert "enqueued on time; the log has no claim of its job" == scene.says()
    scene.seed.advance(10_000)
    scene.seed.complete(*scene.seed.claim().jobs)

    (told,) = scene.history().ticks

    assert (0, "fired", 0, None) == (told.late_ms, told.outcome, told.missed, told.held_by)
    assert "enqueued on time; its job waited for 10 s until w-1 claimed it" in told.says
    assert f"`rq-core audit why {told.job_id}`" in told.says


def test_the_sentence_about_a_late_instant_names_the_last_active_worker(
    scene: Scene,
) -> None:
    scene.put(every=86_400)
    scene.seed.enqueue("a")
    scene.seed.complete(*scene.seed.claim().jobs)
    scene.until_due(more_ms=30 * MINUTE)
    scene.serve()

    told = scene.says()

    assert told.startswith("enqueued 30 min late; until then no worker of the queue did anything:")
    assert "none ran, or none reached Redis (the last before was w-1, at " in told


def test_the_history_says_that_workers_may_have_been_full_when_an_instant_was_late(
    scene: Scene,
) -> None:
    scene.put(every=4, overlap="allow")
    scene.until_due()
    scene.serve()
    scene.until_due(more_ms=3_000)
    scene.serve()

    told = scene.says()

    assert "enqueued 3 s late; the workers may have been full" in told
    assert "looks every 5 s (the last before was w-1, at 20" in told


def test_the_history_says_that_workers_were_absent_and_then_claimed_other_jobs(
    scene: Scene,
) -> None:
    scene.put(every=86_400)
    scene.until_due(more_ms=10 * MINUTE)
    scene.seed.enqueue("a")
    scene.seed.complete(*scene.seed.claim().jobs)
    scene.seed.advance(MINUTE)
    scene.serve()

    told = scene.says()

    assert "no worker of the queue did anything for 10 min, and then workers served others" in told


def test_the_history_says_that_a_full_backlog_delayed_an_instant(scene: Scene) -> None:
    scene.put(every=86_400)
    scene.seed.enqueue("a", "b")
    scene.until_due()
    scene.seed.complete(*scene.seed.claim(1).jobs)
    scene.seed.advance(MINUTE)
    scene.seed.complete(*scene.seed.claim(1).jobs)
    scene.seed.advance(MINUTE)
    scene.serve()

    assert "nothing was enqueued: the backlog of the audit log was full" in scene.says()


def test_the_history_names_the_job_that_caused_a_skipped_instant(
    scene: Scene,
) -> None:
    scene.put()
    scene.until_due()
    scene.serve()
    first = scene.history().ticks[0]
    scene.until_due()
    scene.serve()
    assert f"no job, since job {first.job_id} (of " in scene.says()
    assert "had waited since" in scene.says()
    scene.seed.claim()
    scene.until_due()
    scene.serve("w-2")

    told = scene.history().ticks[-1]

    assert ("skipped", first.job_id) == (told.outcome, told.held_by)
    assert "had run since" in told.says
    assert "on w-1" in told.says


def test_the_sentence_about_a_missed_instant_states_the_grace(scene: Scene) -> None:
    scene.put(every=3600, grace=90)
    scene.until_due(more_ms=10 * MINUTE)
    scene.serve()

    told = scene.says()

    assert (
        "no job, since it was 10 min late, more than its grace of 1 min 30 s (1 instant missed)"
        in told
    )


def test_the_history_says_that_a_schedule_stopped_since_no_code_declares_it(scene: Scene) -> None:
    scene.put(every=14_400, source="code")
    scene.until_due()
    scene.seed.advance(4 * 3_600_000)
    scene.serve()

    found = scene.history()

    assert "no worker's code had declared the schedule" in found.ticks[-1].says
    assert "no worker's code declared it" in found.says


def test_the_sentence_about_a_requested_run_says_who_requested_it_and_why(scene: Scene) -> None:
    scene.put()
    run = scene.seed.calls.schedules.run
    scene.seed.client.run(run("q", "beat", by="ada", why="again, please"))
    scene.seed.advance(1_000)
    scene.seed.client.run(run("q", "beat", by="ada", why="and again"))

    first, second = scene.history().ticks

    assert first.says.startswith("enqueued, since ada asked for it (again, please)")
    assert second.says.startswith("ada asked for it (and again): no job, since job tick-beat-")


def test_the_sentence_about_a_change_says_who_made_it(scene: Scene) -> None:
    scene.put(source="code")
    change = scene.seed.calls.schedules.change
    for what in ("pause", "resume"):
        scene.seed.client.run(change("q", "beat", what, by="ada", why="migration"))
    scene.put(every=120)
    scene.seed.client.run(change("q", "beat", "release", by="ada"))
    scene.seed.client.run(change("q", "beat", "remove", by="ada", why="done"))

    found = scene.history()

    assert [1, 2, 3, 4, 5, 6] == [each.version for each in found.changes]
    says = [each.says for each in found.changes]
    assert "declared it, next at 20" in says[0]
    assert "ada paused it (migration)" == says[1]
    assert "ada resumed it, next at 20" in says[2]
    assert "changed its rule, next at 20" in says[3]
    assert "ada gave it back to code, next at" in says[4]
    assert "ada removed it, although code declares it (done)" == says[5]
    assert "it is removed, since 20" in found.says


def test_the_history_says_whether_a_schedule_is_paused_or_was_not_served(scene: Scene) -> None:
    scene.put()
    assert "its next instant is 20" in scene.history().says
    scene.until_due(more_ms=3 * MINUTE)
    scene.seed.enqueue("later")
    assert "was not served when the log ends, 3 min after it was due" in scene.history().says
    change = scene.seed.calls.schedules.change
    scene.seed.client.run(change("q", "beat", "pause", by="ada", why="migration"))
    found = scene.history()
    assert "it is paused, since 20" in found.says
    assert "ada paused it (migration)" in found.says


def test_the_history_still_says_who_paused_a_schedule_after_the_schedule_was_changed(
    scene: Scene,
) -> None:
    scene.put()
    change = scene.seed.calls.schedules.change
    scene.seed.client.run(change("q", "beat", "pause", by="ada", why="migration"))
    paused_at = scene.history().says
    scene.seed.advance(MINUTE)
    scene.put(every=120)

    found = scene.history()

    assert paused_at == found.says
    assert "next at" not in found.changes[-1].says


def test_the_history_gives_a_cause_for_instants_that_were_missed_before_the_last_one(
    scene: Scene,
) -> None:
    scene.put(every=60, overlap="allow")
    scene.until_due()
    scene.serve()
    scene.until_due(more_ms=10 * MINUTE)
    scene.serve()

    told = scene.says()

    assert told.startswith("enqueued on time, and for 10 instants before it, too; until then no")
    assert "none ran, or none reached Redis (the last before was w-1, at " in told


def test_the_history_reads_only_the_last_instants_of_the_named_schedule(
    scene: Scene,
) -> None:
    scene.put("a", every=60, overlap="allow")
    scene.put("a-1", every=60, overlap="allow")
    for _ in range(5):
        scene.until_due("a-1", more_ms=500)
        scene.until_due("a", more_ms=500)
        scene.serve()

    found = scene.history("a", count=3)

    assert 3 == len(found.ticks)
    assert {"a"} == {each.job_id.rpartition("-")[0].removeprefix("tick-") for each in found.ticks}
    nominal = [each.nominal_ms for each in found.ticks]
    assert sorted(nominal) == nominal
    assert 1 == len(found.changes)
    assert not scene.history("nothing").is_known


def test_the_history_says_that_the_clock_was_set_back(scene: Scene) -> None:
    scene.put(every=3600, overlap="allow")
    scene.until_due()
    scene.seed.enqueue("a")
    later = scene.seed.now + 10 * MINUTE
    scene.seed.clock.set(later)
    scene.seed.enqueue("b")
    scene.seed.clock.set(later - 8 * MINUTE)
    scene.serve()

    assert "the clock of Redis had been set back by 8 min" in scene.says()


def test_a_damaged_row_hides_no_other_instant(scene: Scene) -> None:
    scene.put(overlap="allow", every=60)
    for _ in range(3):
        scene.until_due()
        scene.serve()
    rows = scene.history().ticks
    for number, detail in (
        (0, "{}"),
        (1, '{"nominal_ms":"x","due_ms":1,"missed":0,"version":1,"outcome":5}'),
    ):
        with lying(scene.database) as connection:
            connection.execute(
                text("UPDATE job_event SET detail = :d WHERE type = 'ticked' AND job_id = :j"),
                {"d": detail, "j": rows[number].job_id},
            )

    assert [rows[2]] == list(scene.history().ticks)


def test_the_instants_of_a_schedule_are_found_by_an_index(scene: Scene) -> None:
    asked = "SELECT * FROM schedule_tick WHERE queue = 'q' AND name = 'beat' ORDER BY at_ms DESC"

    plan = auditlog.rows(scene.database, f"EXPLAIN QUERY PLAN {asked}")

    assert ["SEARCH job_event USING INDEX job_event_tick (queue=? AND <expr>=?)"] == [
        row["detail"] for row in plan
    ]


def test_the_command_schedule_history_prints_a_line_for_each_instant_and_change(
    scene: Scene,
) -> None:
    scene.put(every=60, spread=5)
    scene.until_due()
    scene.serve()
    scene.history()
    url = scene.database.address.render_as_string(hide_password=False)

    printed = CliRunner().invoke(root, ["schedule", "history", "q", "beat", "--audit", url]).output
    nothing = CliRunner().invoke(root, ["schedule", "history", "q", "no", "--audit", url])
    without = CliRunner().invoke(
        root, ["schedule", "history", "q", "beat"], env={"RQ_CORE_AUDIT_URL": ""}
    )

    lines = printed.splitlines()
    assert "schedule beat of queue q: its next instant is" in lines[0]
    assert "  changed   version 1: " in lines[1]
    assert "  fired     20" in lines[2]
    assert ", due at 20" in lines[2]
    assert (1, True) == (nothing.exit_code, "has nothing of a schedule no" in nothing.output)
    assert "pass --audit URL" in without.output
