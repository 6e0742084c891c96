"""The examples of traces. Each runs in a process of its own, since it configures its whole process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.docs.transcript import EXAMPLES

TRACES, SENTRY = "traces", "sentry"

COLLECTED = """
import functools, json, sentry_sdk
from sentry_sdk.transport import Transport

class Collect(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            print("SENT", json.dumps(item.payload.json, default=str))

sentry_sdk.init = functools.partial(
    sentry_sdk.init, dsn="https://key@sentry.invalid/1", transport=Collect
)
import sentry as example
from rq_core import testing

with testing.fake(example.app) as fake:
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        example.send.enqueue("acme", "a@b.c")
        example.send.with_options(max_attempts=1).enqueue("acme", "")
    fake.drain()
"""


def run(*words: str, **variables: str) -> str:
    """Run Python in the directory of the examples, and return its output."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=EXAMPLES,
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_spans_of_a_request_and_of_its_job_are_one_trace(valkey_url: str) -> None:
    server = {"RQ_CORE_REDIS_URL": valkey_url}
    printed = run(f"{TRACES}.py", **server)
    burst = ("worker", TRACES, "--queues", "mail", "--burst")
    printed += run("-m", "rq_core.cli", *burst, **server)

    found: list[dict[str, Any]] = []
    at = printed.find("{\n")
    while at >= 0:
        span, end = json.JSONDecoder().raw_decode(printed, at)
        found.append(span)
        at = printed.find("{\n", end)
    by_name = {span["name"]: span for span in found}
    parents = {span["name"]: span["parent_id"] for span in found}
    names = ("POST /orders", "enqueue send", "process send", "render the letter")
    assert set(names) == by_name.keys()
    assert [None, *(by_name[name]["context"]["span_id"] for name in names[:3])] == [
        parents[name] for name in names
    ]
    assert len({span["context"]["trace_id"] for span in found}) == 1
    assert "to a@b.c for acme" in printed


@pytest.mark.slow
def test_sentry_gets_one_trace_of_a_request_and_its_jobs() -> None:
    printed = run("-c", COLLECTED)
    sent = [json.loads(line[5:]) for line in printed.splitlines() if line.startswith("SENT ")]

    transactions = {(each["transaction"], each["contexts"]["trace"]["op"]) for each in sent}
    errors = [each for each in sent if "exception" in each]
    assert {("POST /orders", "http.server"), ("send", "queue.process")} == transactions
    assert len({each["contexts"]["trace"]["trace_id"] for each in sent}) == 1
    assert len(sent) == 4
    [error] = errors
    assert error["exception"]["values"][-1]["value"] == "no address"
    assert error["tags"]["queue"] == "mail"
    published = [
        span["op"] for each in sent for span in each.get("spans", ()) if "queue" in span["op"]
    ]
    assert ["queue.publish", "queue.publish"] == published
