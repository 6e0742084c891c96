"""Log records that code writes while a handler runs. Each record names the handler's job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from rq_core import JobLogFilter, testing
from rq_core.app.app import App
from rq_core.connections.client import Client
from rq_core.model.lib.logs import TextFormatter
from rq_core.model.lib.url import REDIS_URL_VARIABLE
from tests.kit import crew, handling
from tests.kit.processes import worker
from tests.kit.witness import WITNESS


@pytest.fixture
def app(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv(REDIS_URL_VARIABLE, valkey_url)
    handling.app.connect_to(valkey_url)
    yield handling.app
    handling.app.close()


@pytest.mark.slow
def test_log_records_of_a_handler_name_its_job(
    app: App, client: Client, witness: crew.Witness, valkey_url: str
) -> None:
    jobs = [
        task.enqueue()
        for task in (handling.logging_on_loop, handling.logging_in_thread, handling.logging_apart)
    ]
    with worker(
        "tests.kit.handling:app",
        ["crew"],
        valkey_url,
        "--log-format",
        "json",
        "--burst",
        log=witness.path.with_suffix(".log"),
        variables={WITNESS: str(witness.path), REDIS_URL_VARIABLE: valkey_url},
    ) as process:
        process.wait(40)
        said = [json.loads(line) for line in process.said().splitlines() if line.startswith("{")]

    found = {
        line["message"]: (line["job"], line["queue"], line["task"], line["claim"])
        for line in said
        if line["logger"] == "theirs.below"
    }
    on_loop, in_thread, apart = [job.id for job in jobs]
    assert found == {
        "in a task of its own": (on_loop, "crew", "logging_on_loop", 1),
        "to_thread": (on_loop, "crew", "logging_on_loop", 1),
        "on loop": (on_loop, "said by itself", "logging_on_loop", 1),
        "in thread": (in_thread, "crew", "logging_in_thread", 1),
        "apart": (apart, "crew", "logging_apart", 1),
    }
    (started,) = [line for line in said if line["message"] == "worker started"]
    assert "job" not in started


def test_job_log_filter_adds_fields_only_to_records_of_task_handlers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter())
    handler.addFilter(JobLogFilter())
    log = logging.getLogger("test_log_context")
    log.addHandler(handler)
    try:
        with testing.job_running(id="j1", queue="mail", task="send", claim=2):
            log.getChild("below").warning("inside")
        log.warning("outside")
    finally:
        log.removeHandler(handler)

    inside, outside = capsys.readouterr().err.splitlines()
    assert inside.endswith("WARNING inside job=j1 queue=mail task=send claim=2")
    assert outside.endswith("WARNING outside")
