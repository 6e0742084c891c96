"""The command `audit restore` restores schedules that operators changed. Workers declare the schedules of their
code."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.model.recurrence import recurrence
from rq_core.model.schedule import Schedule
from rq_core.protocol.calls.schedules import Declaration
from sql_audit.proof.result import LogVerdict
from sql_audit.store.connection.database import Database
from sql_audit.upkeep import restore
from sql_audit.upkeep.lost_schedules import LostSchedule
from sql_audit.upkeep.restore import Applied, restore_jobs
from sql_audit.upkeep.survey import survey
from tests.audit.restore.jobs import flush, job
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE

KEY = queue_keys(QUEUE)("schedules")


class Scene:
    """A queue with its log, operators, and workers whose code declares the schedules ``nightly`` and ``beat``."""

    def __init__(self, client: Client, database: Database) -> None:
        self.client, self.database = client, database

    def put(self, name: str, source: str = "live", *, spec_max: int = 65_536, **rule: Any) -> None:
        made = job("-", spec_max=spec_max)
        declared = Declaration.of(made, recurrence(name, **(rule or {"every": 3600})))
        self.client.run(self.client.calls.schedules.put(QUEUE, [declared], source=source))
        drain(self.client, self.database)

    def declare(self) -> None:
        """Declare the schedules of the code, as a worker does at its start."""
        for name in ("nightly", "beat"):
            self.put(name, "code", spec_max=0)

    def change(self, name: str, what: str) -> None:
        self.client.run(self.client.calls.schedules.change(QUEUE, name, what, by="ada"))
        drain(self.client, self.database)

    def stored(self) -> dict[str, Schedule]:
        return self.client.run(self.client.calls.schedules.stored(QUEUE))

    def lose(self) -> None:
        drain(self.client, self.database)
        flush(self.client)
        drain(self.client, self.database)

    def restore(self) -> Applied:
        drain(self.client, self.database)
        return restore_jobs(self.client, self.database, QUEUE, by="ada")

    def lost(self) -> dict[str, str]:
        return {
            each.name: each.wants for each in survey(self.client, self.database, QUEUE).schedules
        }


@pytest.fixture
def scene(client: Client, database: Database) -> Scene:
    client.run(client.calls.enqueue.many([job("first")]))
    drain(client, database)
    return Scene(client, database)


def as_set(stored: dict[str, Schedule]) -> dict[str, tuple[str, str]]:
    return {name: (each.state, each.rule) for name, each in stored.items()}


def brief(lost: list[LostSchedule]) -> list[tuple[str, str]]:
    return [(each.name, each.wants) for each in lost]


@pytest.mark.slow
def test_restore_restores_live_schedules_after_a_flush(scene: Scene) -> None:
    scene.put("tenant", every=60)
    scene.put("halted", cron="0 8 * * *", tz="Europe/Berlin", overlap="queue")
    scene.change("halted", "pause")
    scene.put("gone")
    scene.change("gone", "remove")
    before = as_set(scene.stored())
    jobs = scene.client.run(scene.client.calls.reads.snapshot(QUEUE))["schedules"]
    scene.lose()
    assert {} == scene.stored()
    assert {"tenant": "put", "halted": "put"} == scene.lost()

    done = scene.restore()

    assert [("halted", "put"), ("tenant", "put")] == brief(done.schedules)
    assert before == as_set(scene.stored())
    assert {"live"} == {each.source for each in scene.stored().values()}
    now = scene.client.run(scene.client.calls.reads.snapshot(QUEUE))
    assert {jobs[f"{n}|job"] for n in before} == {now["schedules"][f"{n}|job"] for n in before}
    assert {"tenant"} == now["ticks"].keys()
    assert "1" in str(now["caps"]["tick"])
    assert {} == scene.lost()
    assert [] == scene.restore().schedules
    drain(scene.client, scene.database)
    assert_agree(scene.client, scene.database, LogVerdict.HOLDS)


def test_restore_restores_a_changed_schedule_that_workers_have_declared_again(
    scene: Scene,
) -> None:
    scene.declare()
    scene.put("nightly", every=7200)
    scene.change("beat", "pause")
    before = as_set(scene.stored())
    scene.lose()
    scene.declare()
    assert before != as_set(scene.stored())

    done = scene.restore()

    assert [("beat", "pause"), ("nightly", "put")] == brief(done.schedules)
    assert before == as_set(scene.stored())
    scene.declare()
    assert before == as_set(scene.stored())
    drain(scene.client, scene.database)
    assert_agree(scene.client, scene.database, LogVerdict.HOLDS)


def test_restore_removes_a_schedule_again_if_redis_lost_its_removal(scene: Scene) -> None:
    scene.declare()
    scene.change("beat", "remove")
    scene.lose()
    scene.declare()

    assert [("beat", "remove")] == brief(scene.restore().schedules)

    scene.declare()
    assert "removed" == scene.stored()["beat"].state
    assert {} == scene.lost()


def test_restore_does_not_bring_back_a_live_rule_that_an_operator_has_released(
    scene: Scene,
) -> None:
    scene.declare()
    scene.put("nightly", every=7200)
    scene.declare()
    scene.change("nightly", "release")
    scene.lose()
    scene.declare()

    assert {} == scene.lost()


def test_restore_leaves_out_a_schedule_if_the_log_lacks_the_arguments_of_its_job(
    scene: Scene,
) -> None:
    scene.put("secret", spec_max=0)
    scene.lose()
    url = scene.database.address.render_as_string(hide_password=False)
    asked = ["audit", "restore", "--audit", url, "--redis", scene.client.url, "--apply"]

    done = scene.restore()
    drain(scene.client, scene.database)
    printed = CliRunner().invoke(root, asked)

    assert ([], [("secret", "put")]) == (done.schedules, brief(done.schedules_left))
    assert not done.complete
    assert "left: schedule secret: Redis lost its rule, which was set live" in printed.output
    assert "the log does not keep its job's arguments" in printed.output
    assert 2 == printed.exit_code
    assert {} == scene.stored()


def test_restore_puts_back_the_rule_of_a_schedule_though_the_log_lacks_arguments_that_redis_still_has(
    scene: Scene,
) -> None:
    scene.declare()
    scene.put("nightly", spec_max=0, every=7200)
    scene.lose()
    scene.declare()

    assert [("nightly", "put")] == brief(scene.restore().schedules)
    assert "7200000" in scene.stored()["nightly"].rule


def test_restore_takes_the_job_of_a_schedule_from_an_earlier_event_if_the_last_change_has_none(
    scene: Scene,
) -> None:
    """Checks `rq-core schedule set` without --task. The event of this change lacks the arguments of the job."""
    scene.put("tenant", every=60)
    scene.put("tenant", spec_max=0, every=90)
    scene.lose()

    assert [("tenant", "put")] == brief(scene.restore().schedules)

    assert "90000" in scene.stored()["tenant"].rule


def test_restore_puts_back_a_schedule_that_an_operator_resumed_and_no_code_declares(
    scene: Scene,
) -> None:
    """Checks a schedule that an operator resumed. No worker declares it after a loss."""
    scene.put("nightly", "code", every=60)
    entry = str(scene.stored()["nightly"]).replace("on ", "undeclared ", 1)
    scene.client.run(scene.client.calls.delivery.ask([["HSET", KEY, "nightly", entry]]))
    scene.change("nightly", "resume")
    assert "live" == scene.stored()["nightly"].source
    scene.lose()

    assert [("nightly", "put")] == brief(scene.restore().schedules)

    assert ("on", "live") == (scene.stored()["nightly"].state, scene.stored()["nightly"].source)


def test_restore_restores_a_deleted_entry_of_a_schedule_with_the_next_version(
    scene: Scene,
) -> None:
    scene.put("tenant")
    scene.change("tenant", "pause")
    scene.change("tenant", "resume")
    stored = scene.stored()["tenant"]
    scene.client.run(scene.client.calls.delivery.ask([["HDEL", KEY, "tenant", "tenant|job"]]))
    assert {"tenant": "put"} == scene.lost()

    assert [("tenant", "put")] == brief(scene.restore().schedules)

    again = scene.stored()["tenant"]
    assert (stored.version + 1, stored.next_ms) == (again.version, again.next_ms)
    drain(scene.client, scene.database)
    assert_agree(scene.client, scene.database, LogVerdict.HOLDS)


def test_restore_keeps_a_change_of_a_schedule_that_is_not_mirrored_yet(
    scene: Scene, client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.put("tenant")
    declared = Declaration.of(job("-", spec_max=65_536), recurrence("tenant", every=7200))
    client.run(client.calls.schedules.put(QUEUE, [declared]))
    monkeypatch.setattr(restore, "wait_level", lambda *_: drain(client, database))

    assert [] == scene.restore().schedules
    assert "7200000" in scene.stored()["tenant"].rule


def test_restore_without_apply_prints_the_schedules_to_restore_without_their_arguments(
    scene: Scene,
) -> None:
    scene.put("tenant")
    scene.lose()
    url = scene.database.address.render_as_string(hide_password=False)
    asked = ["audit", "restore", "--audit", url, "--redis", scene.client.url]

    printed = CliRunner().invoke(root, asked).output
    as_json = CliRunner().invoke(root, [*asked, "--json"]).output

    assert "schedule tenant: Redis lost its rule, which was set live" in printed
    assert '"wants":"put"' in as_json.replace(" ", "")
    assert '"args"' not in as_json
