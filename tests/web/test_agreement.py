"""The pages about the past show the same facts as the commands of `rq-core audit`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import CommandLine
from tests.rigs.page import waited
from tests.web.conftest import QUEUE, Browse, Scene


@pytest.fixture
def cli(scene: Scene) -> CommandLine:
    return CommandLine(scene.url)


def said(cli: CommandLine, scene: Scene, *words: str) -> Any:
    return json.loads(cli.ok("audit", *words, "--audit", scene.audit_url, "--json"))


def test_the_page_of_a_moment_agrees_with_the_command_audit_at(
    scene: Scene, browse: Browse, cli: CommandLine
) -> None:
    """Checks moments before, during and after a wait, and its first and last moment."""
    waited(scene)
    page = browse()
    (wait,) = page.get(f"/jobs/{QUEUE}/invoice-1.json").json()["waits"]
    since, until = wait["since_ms"], wait["until_ms"]

    for moment in (
        since - 60_000,
        since - 1,
        since,
        since + 1,
        (since + until) // 2,
        until,
        until + 60_000,
    ):
        (shown,) = page.get("/at.json", params={"t": moment, "queue": QUEUE}).json()["moments"]
        told = said(cli, scene, "at", str(moment), "--queue", QUEUE)["queues"][QUEUE]
        assert [each["job_id"] for each in shown["running"]] == [
            each["job_id"] for each in told["running"]
        ]
        assert [each["job_id"] for each in shown["waiting"]] == [
            each["job_id"] for each in told["waiting"]
        ]
        for name in ("at_ms", "waiting_count", "scheduled_count", "caveats"):
            assert shown[name] == told[name], name
        assert {each["scope"]: each["holders"] for each in shown["scopes"]} == {
            scope: each["holders"] for scope, each in told["scopes"].items()
        }  # fmt: skip


@pytest.mark.parametrize("job_id", ["invoice-0", "invoice-2", "export"])
def test_the_page_of_a_job_agrees_with_the_command_audit_why(
    scene: Scene, browse: Browse, cli: CommandLine, job_id: str
) -> None:
    waited(scene)

    shown = browse().get(f"/jobs/{QUEUE}/{job_id}.json").json()
    (told,) = said(cli, scene, "why", job_id)["jobs"]

    assert shown["log_state"] == told["state"]
    assert len(shown["waits"]) == len(told["waits"]) > 0
    for each, expected in zip(shown["waits"], told["waits"], strict=True):
        for name in ("since_ms", "until_ms", "held_back_by", "claim", "in_front"):
            assert each[name] == expected[name], name
