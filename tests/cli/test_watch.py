"""`rq-core watch` and `rq-core job` show the progress and the stream of a job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rq_core import App, RetryPolicy
from rq_core.cli.commands import job
from rq_core.cli.root import root
from rq_core.worker import Worker, WorkerOptions
from tests.kit.seed import Seed


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "--redis", url])


def test_the_job_command_shows_the_progress_of_a_job_as_a_bar(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, says="30/120 row 31")
        shown = run(valkey_url, "job", "a").output
        found = json.loads(run(valkey_url, "job", "a", "--json").output)

    assert "[#####               ] 25 %, 30 of 120 row 31 (" in shown
    assert (found["progress"]["done"], found["progress"]["share"]) == (30, 0.25)


def test_the_watch_command_shows_progress_until_the_job_ends(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, says="3/- up", chunks=[(1, "one"), (5, "two\nlines")])
        seed.fail(claim)
        second = seed.claim_one("a")
        seed.show(second, chunks=[(1, "again")], claim=2)
        seed.fail(second, verdict="final")
        shown = run(valkey_url, "watch", "a")
        lines = run(valkey_url, "watch", "a", "--json", "--after", "1").output.splitlines()

    assert shown.stdout.splitlines() == ["one", "two\\nlines", "again"]
    assert shown.stderr.splitlines() == [
        "3 up",
        "(3 chunks before 5 not kept)",
        "(claim 2 begins)",
        "dead: final: ValueError: no",
    ]
    assert shown.exit_code == 1
    found = [json.loads(line) for line in lines]
    assert [each["chunk"]["number"] for each in found[1:-1]] == [5, 6]
    assert found[0]["progress"]["total"] is None
    assert found[-1] == {"end": {"outcome": "dead", "why": "final: ValueError: no"}}


def test_the_watch_command_shows_the_stream_of_a_job_that_has_left_redis(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, chunks=[(1, "one")])
        seed.complete(claim)

        assert run(valkey_url, "watch", "a").stdout == "one\n"
        assert run(valkey_url, "watch", "a", "--queue", "other").exit_code == 2


def test_the_watch_command_says_that_it_knows_no_such_job(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        seed.complete(seed.running("a"))
        shown = run(valkey_url, "watch", "a")
        seed.show(claim := seed.running("b"), chunks=[(1, "one")])
        seed.complete(claim)
        ended = run(valkey_url, "watch", "b", "--after", "1")

    assert (shown.exit_code, ended.exit_code, ended.stdout) == (1, 0, "")
    assert "no live job a, and no stream or outcome of it" in shown.stderr
    assert ended.stderr.startswith("ended; Redis does not keep how. `rq-core audit history b ")


def test_the_watch_command_finds_the_queue_of_a_stream_though_the_job_has_left_redis(
    valkey_url: str,
) -> None:
    with Seed(valkey_url, real_clock=True) as seed, Seed(valkey_url, "other") as other:
        other.enqueue("b")
        seed.show(claim := seed.running("a"), chunks=[(1, "one")])
        seed.complete(claim)

        assert run(valkey_url, "watch", "a").stdout == "one\n"


def test_forged_progress_is_printed_without_control_characters(valkey_url: str) -> None:
    head = "claim=1 fence=1-2 at=5 says=1 said=1 start=0 from=1 to=3 bytes=9 base=0"
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        fields: dict[str, str | bytes] = {
            "a": f"{head}\n1e3/2 \x1b[2J\u202e".encode() + b"\xff",
            "a~1": b"claim=1 at=5\n\x1b]0;owned\x07\xff\xfe",
            "a~2": b"\xff" * 100_000,
            "a~3": "claim=9 at=5\nlast",
        }
        seed.control.hset(seed.keys("shown"), mapping=fields)
        job = run(valkey_url, "job", "a")
        as_json = run(valkey_url, "job", "a", "--json")
        seed.fail(claim, verdict="final")
        outputs = [
            job,
            as_json,
            run(valkey_url, "watch", "a"),
            run(valkey_url, "watch", "a", "--json"),
        ]

    assert [0, 0, 1, 1] == [each.exit_code for each in outputs]
    for each in outputs:
        assert not {"\x1b", "\x07", "\u202e"} & set(each.output)
        assert len(each.output) < 3_000
    assert "last" in outputs[2].stdout


ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    made.enable_flows()

    @made.task(name="render", queue="pages", retry=ONCE)
    async def render(n: int) -> int:
        if n < 0:
            raise ValueError(f"{n} is no page")
        return n

    yield made
    made.close()


def work(app: App, *queues: str) -> None:
    """Run a worker until these queues have no job that may run."""

    async def burst() -> None:
        try:
            await Worker(app, WorkerOptions(queues=queues, burst=True)).run()
        finally:
            await app.aclose()

    app.apply_settings()
    asyncio.run(burst())


def enqueued(app: App, *numbers: int) -> str:
    with app.flow("pages") as flow:
        for n in numbers:
            flow.add(app.tasks["render"].call(n), name=f"page{n}")
    return flow.enqueue().id


def test_the_watch_command_says_how_a_flow_has_ended(app: App) -> None:
    good, bad = enqueued(app, 1, 2), enqueued(app, 3, -4)
    work(app, "flows", "pages")

    well = run(app.redis_url, "watch", good)
    badly = run(app.redis_url, "watch", bad)
    as_json = run(app.redis_url, "watch", bad, "--json").output.splitlines()

    assert (0, ["succeeded"]) == (well.exit_code, well.stderr.splitlines())
    bar, end = badly.stderr.splitlines()
    assert (1, True) == (badly.exit_code, "1 of 2 1 node failed" in bar)
    assert end.startswith("dead: gave_up: ChildrenFailed: node page-4: job f-")
    assert "ValueError: -4 is no page" in end
    assert f"`rq-core requeue {bad}` runs it again" in end
    assert end == "dead: " + json.loads(as_json[-1])["end"]["why"]


def test_the_watch_command_fails_for_a_cancelled_job(app: App) -> None:
    flow = enqueued(app, 1)
    work(app, "flows")
    run(app.redis_url, "cancel", flow)

    shown = run(app.redis_url, "watch", flow)
    assert (1, "cancelled\n") == (shown.exit_code, shown.stderr)


def test_the_watch_command_names_the_queues_of_a_flow_that_no_worker_serves(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that the watch would wait, it instead runs the worker of the next queue."""
    flow = enqueued(app, 1)
    left = [("flows",), ("flows", "pages")]
    monkeypatch.setattr(job, "WORKERS_S", 0.0)

    def sleep(_seconds: float) -> None:
        _in_thread(work, app, *left.pop(0))

    monkeypatch.setattr(job, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))

    shown = run(app.redis_url, "watch", flow)

    assert [
        "(no worker serves the queue flows)",
        "[                    ] 0 %, 0 of 1",
        "(no worker serves the queue pages)",
        "succeeded",
    ] == shown.stderr.splitlines()
    assert [] == left


def _in_thread(call: Callable[..., Any], *args: Any) -> None:
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call, *args).result()
