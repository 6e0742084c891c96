"""The tools of `rq-core mcp`, called through the client of the package ``mcp``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from rq_core.protocol.calls.admin import Change
from rq_core.web import mcp_server
from rq_core.web.acting.actions import ACTIONS
from rq_core.web.mcp_server import Tools
from rq_core.web.pages import ASKS, PAGES, Page
from rq_core.web.routes import RULES, TOOLS
from rq_core.web.sources import ActingSources, Sources
from rq_core.web.tokens import VIEWER, Access
from rq_core.web.views import ROWS_MAX
from tests.kit.command import command
from tests.kit.servers import RedisServer, engines
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, make_busy
from tests.web.test_pages import ADDRESSES, as_json

CALLS: dict[str, dict[str, Any]] = {
    "overview": {},
    "jobs": {"q": f"queue:{QUEUE} state:ready"},
    "dead": {"queue": QUEUE},
    "workers": {},
    "schedules": {"queue": None},
    "log": {"queue": QUEUE},
    "at": {"t": "now"},
    "audit": {},
    "queue": {"queue": QUEUE},
    "job": {"queue": QUEUE, "id": "died"},
    "schedule": {"queue": QUEUE, "name": "beat"},
}
LONG = "x" * 1_000_000
HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("jobs", {"q": LONG}, "q must have at most 1,000 characters"),
    ("queue", {"queue": LONG}, "queue must have at most 1,000 characters"),
    ("queue", {"queue": "a b/../{c}"}, "queue"),
    ("queue", {"queue": 7}, "queue must be text"),
    ("job", {"queue": QUEUE, "id": ["died"]}, "id must be text"),
    ("job", {"queue": QUEUE}, "give id"),
    ("job", {}, "give queue and id"),
    ("overview", {LONG: "1"}, "has no argument"),
    ("jobs", {"q": f"queue:{QUEUE} colour:red"}, "must have words of these"),
    ("jobs", {"q": f"queue:{QUEUE} arg:to={SECRET}"}, "who may see the arguments"),
    ("jobs", {"q": f"queue:{QUEUE} header:tenant=acme"}, "who may see the arguments"),
    ("jobs", {"behind": "\0"}, "behind"),
    ("log", {"queue": QUEUE, "before": "1; DROP TABLE job"}, "must be the number of an entry"),
    ("at", {"t": "the day before"}, "must be like"),
    ("job", {"queue": QUEUE, "id": "\u202e\U0001f600"}, "id"),
]


@contextlib.asynccontextmanager
async def client(redis_url: str, *words: str) -> AsyncIterator[Client]:
    """Start the command, and yield a client of it."""
    args = ["-m", "rq_core.cli", "mcp", "--redis", redis_url, *words]
    async with Client(StdioServerParameters(command=sys.executable, args=args)) as made:
        yield made


def text_of(answer: Any) -> str:
    (content,) = answer.content
    return str(content.text)


async def read_whole(tools: Tools, name: str, given: dict[str, str]) -> Any:
    """Call a tool until all its sources answer in time. Return its document."""
    for _ in range(20):
        document = json.loads(text_of(await tools.call(name, given)))
        if not document["unread"]:
            return document
        await asyncio.sleep(1.1)  # The answer is kept for a second.
    raise AssertionError(document["unread"])


def contents(scene: Scene) -> dict[str, Any]:
    """Return all contents of Redis and of the audit log."""
    control: Any = scene.seed.control
    control.connection_pool.connection_kwargs["decode_responses"] = False
    with contextlib.closing(sqlite3.connect(scene.audit_url.removeprefix("sqlite:///"))) as log:
        rows = list(log.iterdump())
    names = sorted(control.keys("*"))
    kept = control.execute_command("CONFIG", "GET", "*")
    return {
        "names": names,
        "values": [control.execute_command("DUMP", name, NEVER_DECODE=True) for name in names],
        "expire": [control.pexpiretime(name) for name in names],
        "functions": control.execute_command("FUNCTION", "DUMP", NEVER_DECODE=True),
        "settings": kept,
        "log": rows,
    }


def test_the_tools_are_exactly_the_pages_that_a_viewer_may_see() -> None:
    assert TOOLS == {page.name: page for page in PAGES if page.role == VIEWER}
    assert TOOLS.keys() == CALLS.keys()
    acting = [rule for rule in RULES if rule.method != "GET" or rule.role != VIEWER]
    assert {each.path for each in ACTIONS} <= {rule.path for rule in acting}
    for rule in acting:
        assert not isinstance(rule.serves, Page) or rule.serves.name not in TOOLS
    # No tool has a way to send a change: its sources have no method for that.
    ways = {name for name in dir(ActingSources) if not name.startswith("_")} - set(dir(Sources))
    assert ways == {"change", "copy", "ask_copies"}


def test_each_tool_says_what_it_shows_and_what_its_arguments_mean() -> None:
    made = {tool.name: tool for tool in mcp_server.tools()}

    assert made.keys() == TOOLS.keys()
    for name, page in TOOLS.items():
        tool = made[name]
        assert tool.description == page.says
        assert tool.description.endswith(".")
        assert tool.input_schema["required"] == page.names
        assert tool.input_schema["properties"].keys() == {*page.names, *page.asks} <= ASKS.keys()
        assert tool.input_schema["additionalProperties"] is False
        assert tool.annotations is not None
        assert (tool.annotations.read_only_hint, tool.annotations.destructive_hint) == (True, False)


async def test_no_tool_changes_anything_or_shows_a_secret(busy: Scene, browse: Browse) -> None:
    """Checks the command with users of Redis and SQL who may write."""
    busy.mirror()
    pages = {name: browse().get(as_json(path)).json() for name, path in ADDRESSES.items()}
    before = contents(busy)

    async with client(busy.url, "--audit", busy.audit_url) as made:
        listed = await made.list_tools()
        answers = {name: await made.call_tool(name, given) for name, given in CALLS.items()}
        refused = [await made.call_tool(name, given) for name, given, _ in HOSTILE]
        with pytest.raises(
            MCPError, match=r"^there is no tool x{25} … x{25}: the tools are overview, "
        ):
            await made.call_tool(LONG, {})
        with pytest.raises(MCPError, match="there is no tool bulk"):
            await made.call_tool("bulk", {"where": f"queue:{QUEUE} state:ready"})
        again = await made.call_tool("overview", {})

    assert [tool.name for tool in listed.tools] == [*TOOLS]
    found = {name: json.loads(text_of(answer)) for name, answer in answers.items()}
    for name, answer in answers.items():
        assert not answer.is_error, (name, text_of(answer))
        assert found[name].keys() == pages[name].keys(), name
        assert found[name]["unread"] == []
        assert found[name]["sees_arguments"] is False
    for answer, (_, _, says) in zip(refused, HOSTILE, strict=True):
        assert answer.is_error, says
        assert says in text_of(answer)
        assert "\n" not in text_of(answer)
        assert len(text_of(answer)) <= 1_000
    assert not again.is_error
    texts = [text_of(answer) for answer in (*answers.values(), *refused)]
    assert [text for text in texts if SECRET in text] == []
    assert contents(busy) == before

    assert [each["queue"] for each in found["overview"]["queues"]] == [QUEUE]
    assert {each["id"] for each in found["jobs"]["jobs"]} >= {"ready", "later"}
    assert [each["id"] for each in found["dead"]["jobs"]] == ["died"]
    assert [each["worker"] for each in found["workers"]["workers"]] == ["w-1"]
    assert (
        found["schedules"]["schedules"][0]["name"]
        == found["schedule"]["schedule"]["name"]
        == "beat"
    )
    assert found["log"]["events"][0]["type"]
    assert found["at"]["moments"][0]["queue"] == found["audit"]["queues"][0]["queue"] == QUEUE
    assert found["queue"]["limits"]
    assert [step["type"] for step in found["job"]["path"]] == ["enqueued", "claimed", "died"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    made = RedisServer(engines()[0], tmp_path).start()
    try:
        yield made
    finally:
        made.kill()


@pytest.mark.slow
@pytest.mark.alone
async def test_a_call_answers_within_two_seconds_with_an_error_while_redis_is_stopped(
    scene: Scene, server: RedisServer
) -> None:
    make_busy(scene)
    of_redis = [name for name, page in TOOLS.items() if not page.of_past]
    late = {}
    async with client(server.url, "--audit", scene.audit_url) as made:
        assert not (await made.call_tool("overview", {})).is_error
        for stop in (server.freeze, server.kill):
            stop()
            await asyncio.sleep(1.1)  # The shared reading from before is no longer shown.
            for name, given in CALLS.items():
                began = time.monotonic()
                answer = await made.call_tool(name, given)
                if (took := time.monotonic() - began) >= 2:
                    late[stop.__name__, name] = took
                assert answer.is_error == (name in of_redis), name
                document = json.loads(text_of(answer))
                assert [each["what"] for each in document["unread"]] == ["Redis"]

    assert late == {}


@pytest.mark.slow
async def test_without_an_audit_log_the_tools_of_the_past_say_how_to_name_one(busy: Scene) -> None:
    async with client(busy.url) as made:
        answers = {name: await made.call_tool(name, given) for name, given in CALLS.items()}

    for name, answer in answers.items():
        assert answer.is_error == TOOLS[name].of_past
        unread = json.loads(text_of(answer))["unread"]
        assert ["start it with --audit URL" in each["why"] for each in unread] == [
            True
        ] * answer.is_error


async def test_with_the_right_to_see_arguments_a_tool_shows_them_and_accepts_a_search_for_them(
    busy: Scene,
) -> None:
    sources = Sources(busy.url, audit_url=busy.audit_url)
    with contextlib.closing(sources):
        tools = Tools(sources, Access("mcp", see_arguments=True))

        shown = await tools.call("job", {"queue": QUEUE, "id": "ready"})
        searched = await tools.call("jobs", {"q": f"queue:{QUEUE} arg:to={SECRET}"})

    assert SECRET in text_of(shown)
    assert not searched.is_error


@pytest.mark.slow
async def test_a_tool_returns_at_most_100_queues_and_the_newest_100_events_of_a_job(
    scene: Scene,
) -> None:
    seed = scene.seed
    seed.enqueue("much")
    for number in range(150):
        edit = Change(priority="low" if number % 2 else "high")
        seed.client.run(seed.calls.admin.edit(QUEUE, ["much"], edit))
    for number in range(150):
        seed.of(f"q{number}").enqueue("a")
    scene.mirror()
    sources = Sources(scene.url, audit_url=scene.audit_url)
    with contextlib.closing(sources):
        tools = Tools(sources, Access("mcp"))

        whole = await read_whole(tools, "overview", {})
        job = await read_whole(tools, "job", {"queue": QUEUE, "id": "much"})
        before = {"before": job["events"][0]["place"]}
        older = await read_whole(tools, "job", {"queue": QUEUE, "id": "much"} | before)

    assert len(whole["queues"]) == ROWS_MAX
    assert whole["left_out"]["queues"] == 51
    assert len(job["events"]) == ROWS_MAX
    assert older["events"][-1]["place"] < job["events"][0]["place"]
    assert len(older["events"]) + ROWS_MAX == 1 + 150


def test_the_mcp_command_without_its_extra_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "rq_core.web.mcp_server")
    monkeypatch.setitem(sys.modules, "mcp", None)

    made = command("mcp")

    assert made.exit_code == 1
    assert made.stdout == ""
    (line,) = made.stderr.splitlines()
    assert "rq-core[mcp]" in line
