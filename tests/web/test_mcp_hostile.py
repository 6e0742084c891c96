"""The tools of `rq-core mcp` with hostile data and hostile callers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rq_core.web.mcp_server import NAME_MAX, Tools
from rq_core.web.sources import Sources
from rq_core.web.tokens import Access
from rq_core.web.views import ROWS_MAX
from tests.kit.servers import RedisServer
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, make_busy
from tests.web.test_forged import forge_rows
from tests.web.test_mcp import CALLS, client, read_whole, server, text_of

__all__ = ["server"]  # A fixture.


def strict(text: str) -> Any:
    """Parse JSON strictly. Raises AssertionError for NaN and Infinity, which Python accepts."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.slow
def test_output_of_an_app_does_not_reach_the_mcp_client(busy: Scene, tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(
        "import os, sys\n"
        "from rq_core import App\n"
        "print('loading')\n"
        "os.write(1, b'from C\\n')\n"
        f"app = App({busy.url!r})\n"
    )
    begin = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin})
    made = subprocess.run(
        [sys.executable, "-m", "rq_core.cli", "mcp", "printing:app"], input=asked + "\n", text=True,
        capture_output=True, cwd=tmp_path, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"},
    )  # fmt: skip

    assert made.returncode == 0, made.stderr
    (line,) = made.stdout.splitlines()
    assert json.loads(line)["id"] == 1
    assert "loading" in made.stderr


@pytest.mark.slow
async def test_a_tool_returns_at_most_100_names_even_of_forged_fields(scene: Scene) -> None:
    for number in range(150):
        scene.seed.of(f"q{number}").enqueue("a")
    scene.die("died")
    scene.mirror()
    many = {f"{number}{'x' * 1_000}": ["y"] * 200 for number in range(300)}
    changed = "UPDATE job_event SET detail = ? WHERE type = 'claimed'"
    forge_rows(scene, changed, json.dumps({"scopes": many}))
    with contextlib.closing(Sources(scene.url, audit_url=scene.audit_url)) as sources:
        tools = Tools(sources, Access("mcp"))
        for name, key, every in (("workers", "queues_without", 151), ("audit", "unmirrored", 150)):
            document = await read_whole(tools, name, {})
            assert len(document[key]) == ROWS_MAX, key
            assert document["left_out"] == {key: every - ROWS_MAX}
        job = await read_whole(tools, "job", {"queue": QUEUE, "id": "died"})

    (claimed,) = [each["detail"] for each in job["events"] if each["type"] == "claimed"]
    assert len(claimed["scopes"]) == ROWS_MAX
    assert all(
        len(name) <= NAME_MAX and len(row) <= ROWS_MAX for name, row in claimed["scopes"].items()
    )
    assert job["left_out"]["scopes"] == 200


async def test_each_answer_is_json_for_programs_in_any_language(
    scene: Scene, browse: Browse
) -> None:
    """Checks NaN and Infinity, which JSON lacks, in a job's arguments and in the log."""
    scene.seed.enqueue(
        "odd", args_json='{"n": NaN, "m": [Infinity, -Infinity, 1.5]}', spec_max=10_000
    )
    scene.die("dies", '{"type": "E", "message": NaN, "traceback": null, "more": Infinity}')
    scene.mirror()
    with contextlib.closing(Sources(scene.url, audit_url=scene.audit_url)) as sources:
        tools = Tools(sources, Access("mcp", see_arguments=True))
        calls = [
            ("job", {"queue": QUEUE, "id": "odd"}), ("job", {"queue": QUEUE, "id": "dies"}),
            ("jobs", {"q": f"queue:{QUEUE}"}), ("dead", {"queue": QUEUE}), ("log", {"queue": QUEUE}),
        ]  # fmt: skip
        await read_whole(tools, *calls[0])
        answers = [strict(text_of(await tools.call(name, given))) for name, given in calls]
    page = browse(see_arguments=True).get(f"/jobs/{QUEUE}/odd.json").text

    for document in (answers[0], strict(page)):
        assert document["unread"] == []
        assert document["job"]["args"] == {"n": "nan", "m": ["inf", "-inf", 1.5]}


async def test_no_tool_and_no_page_shows_the_keys_and_values_of_steps_and_signals(
    scene: Scene, browse: Browse
) -> None:
    seed = scene.seed
    claim = seed.running("durable", args_json=json.dumps({"to": SECRET}))
    seed.save(claim, name=f"charge={SECRET}", value=json.dumps({"card": SECRET}), kept="full")
    seed.wait(claim, entry=2)
    seed.park(claim, waits="2")
    seed.signal("durable", name="other", key=SECRET, value=json.dumps(SECRET))
    scene.mirror()
    given = {"queue": QUEUE, "id": "durable"}
    with contextlib.closing(Sources(scene.url, audit_url=scene.audit_url)) as sources:
        texts = [
            text_of(await Tools(sources, Access("mcp", see_arguments=sees)).call(name, asked))
            for sees in (False, True)
            for name, asked in (("job", given), ("log", {"queue": QUEUE}), ("jobs", {"q": f"queue:{QUEUE}"}))
        ]  # fmt: skip

    paths = f"/jobs/{QUEUE}/durable", f"/jobs/{QUEUE}/durable.json", f"/log?queue={QUEUE}"
    pages = [browse().get(path).text for path in paths]

    document = json.loads(texts[0])
    assert [each["name"] for each in document["steps"]] == ["charge", "approval"]
    assert document["signals"][0]["key"] == "hidden"
    named = {each["type"]: each["detail"].get("name") for each in document["events"]}
    assert named["step_saved"] == "charge"
    assert named["signalled"] == "other"
    assert [each["hidden"] for each in document["events"] if each["type"] == "signalled"] == [
        ["key"]
    ]
    assert [at for at, text in enumerate([*texts, *pages]) if SECRET in text] == [3, 4]


async def test_a_tool_answers_an_extreme_moment_or_position_or_refuses_it_with_a_sentence(
    busy: Scene,
) -> None:
    moments = {
        "0": False, "0001-01-01 00:00": False, "9999-12-31 23:59": False, "9" * 18: True, "9" * 300: True,
        "-5": True, "inf": True, "1e400": True,
    }  # fmt: skip
    last = "9" * 18
    with contextlib.closing(Sources(busy.url, audit_url=busy.audit_url)) as sources:
        tools = Tools(sources, Access("mcp"))
        refused = {t: (await tools.call("at", {"t": t})).is_error for t in moments}
        for before in (f"{last}-{last}-{'9' * 9}", f"{last}-{last}"):
            for name, more in (("log", {"queue": QUEUE}), ("job", {"queue": QUEUE, "id": "died"})):
                answer = await tools.call(name, {**more, "before": before})
                assert json.loads(text_of(answer))["events"], (name, before)
        behind = {"q": "outcome:failed", "behind": f"{last}/{last}/q/x"}
        found = json.loads(text_of(await tools.call("jobs", behind)))

    assert refused == moments
    assert found["unread"] == []


@pytest.mark.slow
async def test_a_missing_database_is_not_created(busy: Scene, tmp_path: Path) -> None:
    paths = [tmp_path / "none.db", tmp_path / "inbox.db"]
    log, inbox = (f"sqlite:///{path}" for path in paths)
    async with client(busy.url, "--audit", log, "--inbox", inbox) as made:
        answers = [await made.call_tool(name, given) for name, given in CALLS.items()]

    assert all("there is no audit log at" in text_of(each) for each in answers)
    assert [path for path in paths if path.exists()] == []


@pytest.mark.slow
async def test_invalid_lines_do_not_end_the_mcp_command(busy: Scene) -> None:
    begin = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    calls = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "overview", "arguments": {}}},
    ]  # fmt: skip
    junk = [
        "no json",
        "[" * 10_000,
        json.dumps({"jsonrpc": "2.0", "id": 9}),
        "x" * 2_000_000,
        '{"id": NaN}',
        "\ud800",
    ]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "rq_core.cli", "mcp", "--redis", busy.url,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, limit=2**24,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    for line in (json.dumps(calls[0]), *junk, json.dumps(calls[1]), json.dumps(calls[2])):
        process.stdin.write(line.encode("utf-8", "surrogatepass") + b"\n")
    answers: dict[Any, Any] = {}
    while 2 not in answers:
        line_read = await asyncio.wait_for(process.stdout.readline(), 30)
        answer = json.loads(line_read)
        answers[answer.get("id")] = answer
    process.stdin.close()

    assert await asyncio.wait_for(process.wait(), 30) == 0
    assert json.loads(answers[2]["result"]["content"][0]["text"])["queues"][0]["queue"] == QUEUE


@pytest.mark.slow
@pytest.mark.alone
async def test_many_calls_at_once_end_in_time_while_redis_is_frozen(
    scene: Scene, server: RedisServer
) -> None:
    make_busy(scene)
    async with client(server.url, "--audit", scene.audit_url) as made:
        await made.call_tool("overview", {})
        server.freeze()
        await asyncio.sleep(1.1)  # The shared reading from before is no longer shown.
        began = time.monotonic()
        ids = [f"j{number}" for number in range(40)]
        asked = (made.call_tool("job", {"queue": QUEUE, "id": job_id}) for job_id in ids)
        answers = await asyncio.gather(*asked)
        took = time.monotonic() - began
        began = time.monotonic()
    closed = time.monotonic() - began

    assert all(each.is_error for each in answers)
    assert took < 4
    assert closed < 10
