"""The metrics, causes and alerts of an inbox: waiting rows and parked rows. A read of the inbox takes no lock."""

from __future__ import annotations

import contextlib
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.metrics.alerts import ALERT_BY_NAME
from rq_core.metrics.collector import QueueCollector
from rq_core.web.access import LocalOnly
from rq_core.web.dashboard import build_site
from rq_core.web.sources import ActingSources
from rq_core.worker.claim_counters import OTHER
from sql_audit.inbox import watching
from tests.kit.command import command
from tests.kit.inbox import QUEUE, Stage
from tests.metrics.scrape import Scrape, exposition, parsed, value

ON_ITS_WAY = (
    "INSERT INTO rqc_relay (queue, slot, number, ids, sent_at, taken_by)"
    " VALUES (?, 's', 1, '[1]', (SELECT created_at FROM rqc_inbox LIMIT 1), 'r-1')"
)


def scraped(stage: Stage) -> Scrape:
    with contextlib.closing(
        QueueCollector.at(stage.redis_url, inbox_url=stage.database_url)
    ) as collector:
        return parsed(exposition(collector))


def firing(found: Scrape) -> set[str]:
    """Return the alerts about the inbox that fire."""
    return {
        name
        for name, alert in ALERT_BY_NAME.items()
        for (sample, _), is_now in found.items()
        for when in alert.all_of
        if sample == when.family and sample.startswith("rqc_inbox_")
        if (is_now > when.value if when.comparison == ">" else is_now == when.value)
    }


def top(stage: Stage) -> Any:
    words = ["--json", "--redis", stage.redis_url, "--inbox", stage.database_url]
    result = command("top", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def said(stage: Stage) -> dict[str, str]:
    """Return what `rq-core top` says about the inbox, by the name of the alert."""
    causes = top(stage)["causes"]
    return {each["alert"]: each["says"] for each in causes if "Inbox" in each["alert"]}


def all_four(found: Scrape, queue: str = QUEUE) -> list[float | None]:
    names = ("rows", "oldest_seconds", "parked", "relayed_total")
    return [value(found, f"rqc_inbox_{name}", queue=queue) for name in names]


def counts_and_alerts(stage: Stage) -> None:
    stage.insert("a", "b")
    stage.insert("bad", args="[")
    stage.hand_over()
    assert all_four(scraped(stage)) == [0, 0, 1, 2]
    assert firing(scraped(stage)) == {"RqCoreInboxParked"}
    stage.insert("c", "d")
    assert "RqCoreInboxWaits" not in said(stage), "they have only just come"
    stage.age_rows(240)

    rows, oldest, parked, relayed = all_four(scraped(stage))

    assert (rows, parked, relayed) == (2, 1, 2)
    assert oldest is not None
    assert 240 <= oldest < 300
    assert firing(scraped(stage)) == {"RqCoreInboxWaits", "RqCoreInboxParked"} == set(said(stage))
    assert value(scraped(stage), "rqc_inbox_up") == 1


def test_metrics_alerts_and_causes_show_rows_of_an_inbox(
    stage: Stage,
) -> None:
    counts_and_alerts(stage)

    assert said(stage) == {
        "RqCoreInboxWaits": (
            "2 rows wait in the inbox, the oldest for 4 min, and no relay takes them: run `rq-core inbox run URL`"
        ),
        "RqCoreInboxParked": "1 row of the inbox is parked: `rq-core inbox parked URL` says why",
    }
    (queue,) = top(stage)["inbox"]
    assert (queue["queue"], queue["rows"], queue["rows_exact"]) == (QUEUE, 2, True)
    sources = ActingSources(stage.redis_url, inbox_url=stage.database_url)
    site = build_site(sources, LocalOnly())
    with TestClient(site, base_url="http://localhost:8900", client=("127.0.0.1", 1)) as page:
        shown = re.sub(r"</?code>", "`", html.unescape(page.get("/").text))
    assert said(stage)["RqCoreInboxWaits"] in shown
    stage.hand_over()
    assert set(said(stage)) == {"RqCoreInboxParked"}


def test_metrics_alerts_and_causes_show_rows_of_an_inbox_on_postgres(on_postgres: Stage) -> None:
    counts_and_alerts(on_postgres)


def test_the_cause_about_waiting_rows_says_whether_a_batch_is_stuck(stage: Stage) -> None:
    stage.insert("a")
    stage.age_rows(240)
    stage.sql(ON_ITS_WAY, QUEUE)

    says = said(stage)["RqCoreInboxWaits"]
    stage.age_batches(0)

    assert "a batch was chosen 4 min ago and not handed over: run `rq-core inbox run URL`" in says
    assert said(stage)["RqCoreInboxWaits"].endswith("; a relay hands them over")


def test_metrics_and_causes_count_no_more_rows_of_an_inbox_than_a_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "ROWS_MAX", 3)
    monkeypatch.setattr(watching, "PARKED_MAX", 3)
    stage.insert(*"abcd", args="[")
    stage.hand_over()
    stage.insert(*"efgh")
    stage.age_rows(240)

    assert all_four(scraped(stage))[0] == all_four(scraped(stage))[2] == 3
    assert said(stage)["RqCoreInboxWaits"].startswith("at least 3 rows wait in the inbox")
    assert said(stage)["RqCoreInboxParked"].startswith("at least 3 rows of the inbox are parked")


def test_a_read_of_the_inbox_shows_the_parked_rows_of_each_queue(
    stage: Stage, on_postgres: Stage
) -> None:
    for each in (stage, on_postgres):
        each.sql(
            "INSERT INTO rqc_inbox_parked (queue, id, job_id, task, args, created_at, why)"
            " SELECT 'a', n * n, 'j', 't', '{}', CURRENT_TIMESTAMP, 'w' FROM (WITH RECURSIVE c(n) AS"
            " (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 150) SELECT n FROM c) AS numbers"
        )
        each.insert("bad", args="[", queue="b")
        each.hand_over()

        found = scraped(each)

        assert [all_four(found, queue)[2] for queue in "ab"] == [watching.PARKED_MAX, 1]


def test_metrics_and_causes_cover_no_more_queues_of_an_inbox_than_a_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUEUES_MAX", 2)
    for queue in ("a", "b", "c"):
        stage.insert("j", queue=queue)

    assert top(stage)["causes"] == [
        {
            "alert": "RqCoreQueuesLeftOut",
            "queue": None,
            "says": "1 queue of the inbox is not shown: a look reads 2",
        }
    ]
    assert value(scraped(stage), "rqc_inbox_rows", queue="c") is None


def test_invalid_queue_names_in_the_inbox_share_one_metric_label(stage: Stage) -> None:
    """Checks queue names that any INSERT may contain. The metrics stay few, and no sample appears twice."""
    stage.insert("a", queue="no name")
    stage.insert("b", queue="x" * 1_000)
    stage.insert("c")

    found = scraped(stage)

    assert value(found, "rqc_inbox_rows", queue=OTHER) == 2
    assert value(found, "rqc_inbox_rows", queue=QUEUE) == 1
    assert len([name for name, _ in found if name == "rqc_inbox_rows"]) == 2


def test_a_read_of_the_inbox_does_not_wait_for_a_transaction_that_writes(stage: Stage) -> None:
    stage.insert("a")
    with stage.session.transaction() as transaction:
        transaction.run("INSERT INTO rqc_inbox (queue, task) VALUES ('mail', 'send')")

        found = scraped(stage)

    assert value(found, "rqc_inbox_up") == 1
    assert value(found, "rqc_inbox_rows", queue=QUEUE) == 1


def test_an_inbox_without_tables_hides_no_other_metric(valkey_url: str, tmp_path: Path) -> None:
    away = str(tmp_path / "app.db")
    command("enqueue", "mail", "send", "--redis", valkey_url)

    with contextlib.closing(QueueCollector.at(valkey_url, inbox_url=away)) as collector:
        found = parsed(exposition(collector))
    shown = json.loads(command("top", "--json", "--redis", valkey_url, "--inbox", away).stdout)

    assert (value(found, "rqc_up"), value(found, "rqc_inbox_up")) == (1, 0)
    assert value(found, "rqc_queue_jobs", queue="mail", state="ready") == 1
    assert firing(found) == {"RqCoreInboxDown"}
    assert (shown["inbox_up"], shown["inbox"]) == (False, [])
    (says,) = [each["says"] for each in shown["causes"] if each["alert"] == "RqCoreInboxDown"]
    assert "rq-core inbox migrate" in says
