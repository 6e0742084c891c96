"""The commands and the page name the failures or the operator that paused a scope."""

from __future__ import annotations

import contextlib

import pytest

from rq_core.metrics.collector import QueueCollector
from rq_core.protocol.calls import claims
from tests.cli.conftest import CommandLine
from tests.web.conftest import QUEUE, Browse, Scene, read

FAMILY = "ask.host@60s:failures"
SCOPE = f"{FAMILY}=h1"
FAILED = '{"type": "%s", "message": "no"}'
BEHIND = ("by 2 failures: 1 ", "1 TimeoutError, ", "1 ConnectionError, ", ", the last of job ")
RESUME = f"rq-core resume-scope {QUEUE} {SCOPE}"


@pytest.fixture
def cli(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.setenv("COLUMNS", "300")
    return CommandLine(scene.url)


def pause_by_failures(scene: Scene) -> None:
    """Let two jobs of a host fail, so that a third one waits."""
    seed = scene.seed
    seed.cap(FAMILY, "2/60000ms/3600000")
    seed.enqueue("a", "b", "c", task="ask", scopes=[SCOPE])
    for job_id, kind in (("a", "ConnectionError"), ("b", "TimeoutError")):
        (held,) = seed.claim(1).jobs
        record = (held.id, held.fence, "retry", 3_600_000, "failed", FAILED % kind)
        assert held.id == job_id
        seed.client.run(claims.fail(QUEUE, "w-1", [record]))
    seed.claim(1)


def test_commands_and_the_page_name_the_failures_that_paused_a_scope(
    scene: Scene, browse: Browse, cli: CommandLine
) -> None:
    pause_by_failures(scene)
    scene.mirror()
    log = ("--audit", scene.audit_url)

    shown = {
        "caps": cli.ok("caps", QUEUE, *log),
        "job": cli.ok("job", "c", *log),
        "why": cli.ok("audit", "why", "c", *log),
        "top": " ".join(cli.ok("top", "--once", *log).split()),
        "page of the queue": read(browse(), f"/queues/{QUEUE}"),
        "page of the job": read(browse(), f"/jobs/{QUEUE}/c"),
    }

    lacking = {name: [part for part in BEHIND if part not in text] for name, text in shown.items()}
    assert {name: parts for name, parts in lacking.items() if parts} == {}
    named = ("job", "page of the job", "caps", "top", "page of the queue")
    assert [name for name in named if RESUME not in shown[name]] == []
    assert f"`{RESUME}` ends the pause" in shown["caps"]
    page = browse().get(f"/queues/{QUEUE}").text
    # In the cause and below the table of limits.
    assert page.count(f"<code>{RESUME}</code> ends the pause") == 2
    assert f"held back by {SCOPE}" in shown["why"]
    (said,) = cli.json("caps", QUEUE, *log)[1:]
    assert {each["job_id"] for each in said["pause"]["failures"]} == {"a", "b"}
    assert cli.json("job", "c", *log)["pause"]["cause"] == "failures"


def test_commands_name_the_operator_who_paused_a_scope(scene: Scene, cli: CommandLine) -> None:
    """While the log lacks a pause, the commands show only the operator whom Redis names."""
    pause_by_failures(scene)
    scene.mirror()
    cli.ok("resume-scope", QUEUE, SCOPE)
    cli.ok("pause-scope", QUEUE, SCOPE, "--by", "ada", "--reason", "until noon")
    scene.seed.claim(1)
    log = ("--audit", scene.audit_url)

    assert "paused until resume-scope, by ada\n" in cli.ok("job", "c", *log).replace(" \n", "\n")

    scene.mirror()

    assert "paused until resume-scope, by ada: until noon" in cli.ok("caps", QUEUE, *log)
    assert "paused until resume-scope, by ada: until noon" in cli.ok("job", "c", *log)


def test_a_log_that_cannot_be_read_does_not_hide_a_pause(scene: Scene, cli: CommandLine) -> None:
    pause_by_failures(scene)

    answer = cli("caps", QUEUE, "--audit", "nowhere/at/all.db")

    assert answer.exit_code == 0
    assert SCOPE in answer.stdout
    assert "paused until" in answer.stdout
    assert "the audit log cannot be read" in answer.stderr


def test_metrics_count_paused_scopes_by_the_causes_of_their_pauses(scene: Scene) -> None:
    pause_by_failures(scene)
    pauses = scene.seed.client.calls.pauses
    scene.seed.client.run(pauses.pause(QUEUE, f"{FAMILY}=h2", by="ada"))
    scene.mirror()

    with contextlib.closing(QueueCollector.at(scene.url, audit_url=scene.audit_url)) as collector:
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in collector.collect()
            for sample in family.samples
        }

    counted = {key[2]: value for key, value in found.items() if key[0] == "rqc_audit_scope_pauses"}
    assert counted == {"failures": 1, "handler": 0, "operator": 1}
    paused = {key[2]: value for key, value in found.items() if key[0] == "rqc_scopes_paused"}
    assert paused == {"paused": 2, "probing": 0}
