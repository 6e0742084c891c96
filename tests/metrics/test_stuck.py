"""Five stuck queues, each with a different cause. `rq-core top` and the alerts name the cause.

For a healthy queue, no cause is named.
"""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from click.testing import CliRunner

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.metrics.alerts import ALERTS, Alert, When
from rq_core.metrics.collector import QueueCollector
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, free_port
from tests.metrics.scrape import Scrape, exposition, parsed
from tests.rigs.stuck import QUEUE, SAYS, SCENES, scene

ALERT: Final = {
    "no_worker": "RqCoreNoWorker", "full_cap": "RqCoreScopeFull", "paused": "RqCoreQueuePaused",
    "poison": "RqCoreJobsDie", "sql_away": "RqCoreAuditDown",
}  # fmt: skip


def away() -> str:
    return f"postgresql://nobody@127.0.0.1:{free_port()}/none"


def scraped(url: str, audit_url: str | None) -> Scrape:
    collector = QueueCollector.at(url, audit_url=audit_url)
    try:
        return parsed(exposition(collector))
    finally:
        collector.close()


def firing(before: Scrape, after: Scrape) -> dict[str, set[str | None]]:
    """Return the alerts that fire, with their queues. Alerts about growth compare two scrapes."""
    return {alert.name: found for alert in ALERTS if (found := _holds(alert, before, after))}


def _holds(alert: Alert, before: Scrape, after: Scrape) -> set[str | None]:
    each = [_queues_of(when, before, after) for when in alert.all_of]
    return set.intersection(*each)


def _queues_of(when: When, before: Scrape, after: Scrape) -> set[str | None]:
    found: set[str | None] = set()
    for (name, labels), value in after.items():
        if name != when.family or not set(when.labels) <= labels:
            continue
        if when.within_s:
            value -= before.get((name, labels), 0.0)  # noqa: PLW2901 - how much it grew
        if {">": value > when.value, "<": value < when.value, "==": value == when.value}[
            when.comparison
        ]:
            found.add(dict(labels).get("queue"))
    return found


@pytest.mark.parametrize("name", SCENES)
def test_the_top_command_and_the_alerts_name_the_cause_of_a_stuck_queue(
    name: str, valkey_url: str
) -> None:
    audit_url = away() if name == "sql_away" else None
    before = scraped(valkey_url, audit_url)
    with scene(valkey_url, name):
        alerts = firing(before, scraped(valkey_url, audit_url))
        shown = top(valkey_url, audit_url)

    alert, says = ALERT[name], SAYS[name]
    # Where SQL is away, the mirror is behind as well.
    named = [alert, "RqCoreMirrorBehind"] if name == "sql_away" else [alert]
    assert set(alerts) == set(named)
    assert [each["alert"] for each in shown["causes"]] == named
    cause = shown["causes"][0]
    assert cause["says"].startswith(says)
    if name == "poison":
        assert ": poison, since each worker that ran it was lost; 1 dead in all" in cause["says"]
    if name == "sql_away":
        assert (cause["queue"], shown["audit_up"]) == (None, False)
        assert shown["queues"][0]["backlog"] > 0
    else:
        assert alerts[alert] == {QUEUE} == {cause["queue"]}


def top(url: str, audit_url: str | None, *words: str) -> Any:
    audit = ["--audit", audit_url] if audit_url else []
    done = CliRunner().invoke(root, ["top", "--json", "--redis", url, *audit, *words])
    shown = json.loads(done.stdout)
    assert done.exit_code == (0 if shown["up"] else 1), done.output
    return shown


def test_the_cause_of_a_late_mirror_does_not_show_the_url_of_the_log(
    valkey_url: str,
) -> None:
    """Checks the alert about a late mirror, which needs no metrics from the log."""
    with scene(valkey_url, "sql_away"):
        alerts = firing({}, scraped(valkey_url, None))
        (cause,) = top(valkey_url, None)["causes"]

    assert alerts == {"RqCoreMirrorBehind": {QUEUE}}
    assert cause["alert"] == "RqCoreMirrorBehind"
    assert cause["says"] == "the mirror is at least 10 min behind: 6 events wait"


def test_the_doctor_and_queues_commands_report_a_mirror_that_is_behind(valkey_url: str) -> None:
    """Checks events that have waited for ten minutes. The doctor exits with 1."""
    with scene(valkey_url, "sql_away"):
        queues = CliRunner().invoke(root, ["queues", "--redis", valkey_url])
        doctor = CliRunner().invoke(root, ["doctor", QUEUE, "--redis", valkey_url])
        as_json = CliRunner().invoke(root, ["doctor", QUEUE, "--json", "--redis", valkey_url])

    behind = "the mirror is at least 10 min behind: 6 events wait"
    assert behind in queues.stdout
    assert f"{QUEUE}: mirror: {behind}; start `rq-core audit run`, or look into its log" in (
        doctor.stdout
    )
    assert f"{QUEUE}: all agrees" not in doctor.stdout
    assert (doctor.exit_code, doctor.stderr) == (1, "rq-core: 1 finding\n")
    (found,) = json.loads(as_json.stdout)[-1]["left"]
    assert (found["kind"], found["mendable"]) == ("mirror", False)


def test_the_top_command_reports_no_cause_for_a_healthy_queue(
    valkey_url: str, client: Client
) -> None:
    with Seed(valkey_url, QUEUE, real_clock=True) as seed:
        before = scraped(valkey_url, None)
        seed.enqueue("a", "b")
        seed.claim(1)
        says = Presence("web-1", 1, "0.1.0", "c0de0001", (QUEUE,), 10, 1, 0)
        client.run(worker_registry.announce("rqc", "w-1", says, [QUEUE], ["send"]))

        assert firing(before, scraped(valkey_url, None)) == {}
        assert top(valkey_url, None)["causes"] == []


def test_the_top_command_names_the_alert_for_an_unreachable_server(valkey: RedisServer) -> None:
    url = f"redis://127.0.0.1:{free_port()}/0"

    shown = top(url, None)

    assert (shown["up"], shown["queues"]) == (False, [])
    assert [each["alert"] for each in shown["causes"]] == ["RqCoreRedisDown"]
    assert set(firing({}, scraped(url, None))) == {"RqCoreRedisDown"}
