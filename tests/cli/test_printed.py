"""Texts from jobs, workers and servers. Commands print such a text without control characters, on one line, and cut to
a bounded length.

The tests plant hostile text wherever commands read. They fail for a new command until you add a call or an exemption
here, and print with `rq_core.cli.text`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import rq_core.cli
import sql_audit.cli
from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.model.keys import queue_keys
from rq_core.model.recurrence import recurrence
from rq_core.model.result_encoding import pack_result
from rq_core.model.showing.shown import said_as_text
from rq_core.model.unique_names import name_field
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving, save
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.calls.shows import Show, show_jobs
from sql_audit.mirror.redis_access import open_source
from sql_audit.mirror.service import run_mirror
from sql_audit.store.connection.database import Database
from tests.kit.schemas import lay_schema
from tests.kit.servers import RedisServer

FORGED = "rq-core: all is well"
HOSTILE = f"\x1b[2J\x1b]0;title\x07\r\n{FORGED}\n\x9b31m\u202e[red]\x08\x7f" + "x" * 100_000
LINE_MAX = 10_000
"""The highest number of characters of a printed line. A line of a table has several cells."""
KEYS = queue_keys("mail")


def plant(client: Client, control: Any) -> str:
    """Put hostile text into a job and its error, into reasons, a worker's row, a slot, and the list of queues.

    Returns the id of the job.
    """
    spec = json.dumps({"to": HOSTILE})
    job = NewJob("dies", "mail", profile("send"), spec, headers_json=json.dumps({"h": HOSTILE}))
    waits = NewJob("waits", "mail", profile("send"), spec)
    client.run(client.calls.enqueue.many([job]))
    (held,) = client.run(claims.claim("mail", "w-1", 1)).jobs
    steps = [
        Saving(held.id, held.fence, "0" * 16, "begin", 1, "begun"),
        Saving(
            held.id,
            held.fence,
            "0" * 16,
            "save",
            2,
            "saved",
            pack_result(json.dumps(HOSTILE[:4_000])),
        ),
    ]
    assert not client.run(save("mail", "w-1", steps))
    says = [("says", 1, said_as_text(1, 2, HOSTILE)), ("chunk", 1, HOSTILE[:4_000])]
    client.run(
        show_jobs("mail", "w-1", [Show(held.id, held.fence, 1, 0, *each) for each in says])  # type: ignore[arg-type]
    )
    error = json.dumps(
        {"type": HOSTILE[:400], "message": HOSTILE[:4_000], "traceback": HOSTILE[:4_000]}
    )
    client.run(claims.fail("mail", "w-1", [(held.id, held.fence, "final", 0, "gave_up", error)]))
    client.run(client.calls.admin.configure("mail", {"paused": 1}, why=HOSTILE[:3_000]))
    client.run(client.calls.admin.configure("mail", {"paused": 0}, why=HOSTILE[:3_000]))
    client.run(client.calls.caps.change("mail", "queue", 3, why=HOSTILE[:3_000]))
    client.run(client.calls.enqueue.many([waits]))
    made = Declaration.of(waits._replace(id="-"), recurrence("nightly", every=3600))
    client.run(client.calls.schedules.put("mail", [made], why=HOSTILE[:3_000]))
    says = {
        "host": HOSTILE,
        "pid": 1,
        "version": HOSTILE,
        "code": HOSTILE,
        "queues": ["mail"],
        "places": 1,
    }
    now = control.time()[0]
    row = json.dumps(says | {"busy": 0, "since_ms": 0})
    control.hset(KEYS("workers"), "w-1", f"{now} {row}")
    control.hset(KEYS("slots"), name_field(HOSTILE), job.id)
    control.sadd("rqc:queues", HOSTILE)
    return job.id


def by_hand(control: Any) -> None:
    """Write hostile values that only redis-cli can write, after the mirror has copied the queue."""
    line = control.hget(KEYS("state"), "dies")
    bad = HOSTILE.replace(" ", "_").replace("\n", "").replace("\r", "")
    control.hset(KEYS("state"), "dies", line.replace("reason=gave_up", f"reason={bad}"))
    control.hset(KEYS("schedules"), "bad", HOSTILE)
    control.hset(KEYS("caps"), "task=send", f"1 version=1 from=live by={bad} at=1")
    control.hset(KEYS("caps"), "send@1s", "1/1000ms/1 version=1 from=code")


@pytest.fixture
def planted(valkey: RedisServer, sqlite_url: str) -> tuple[str, str]:
    with Client(valkey.url) as client, valkey.client(decode_responses=True) as control:
        plant(client, control)
        with contextlib.closing(Database(sqlite_url)) as database:
            lay_schema(database)
        source = open_source(valkey.url, "rqc")
        run_mirror(source, sqlite_url, stop=threading.Event(), once=True)
        source.close()
        by_hand(control)
    return valkey.url, sqlite_url


CALLS: dict[str, list[str]] = {
    "queues": [],
    "job": ["dies"],
    "jobs": ["mail", "--state", "dead"],
    "steps": ["dies", "--values"],
    "watch": ["dies"],
    "children": ["dies"],
    "signal": ["dies", "approval", "--reason", HOSTILE[:500]],
    "fork": ["dies", "--from-step", HOSTILE[:500], "--reason", HOSTILE[:500]],
    "result": ["dies"],
    "dead": ["mail"],
    "unique": ["mail"],
    "schedules": ["mail"],
    "schedule next": ["mail", "nightly"],
    "schedule set": ["mail", "nightly", "--every", "60"],
    "schedule pause": ["mail", "nightly"],
    "schedule resume": ["mail", "nightly"],
    "schedule run": ["mail", "nightly"],
    "schedule release": ["mail", "nightly"],
    "schedule history": ["mail", "nightly"],
    "schedule remove": ["mail", "nightly"],
    "workers": [],
    "caps": ["mail"],
    "top": ["--once"],
    "metrics": ["--once"],
    "doctor": [],
    "set": ["mail"],
    "cap": ["mail", "queue", "5"],
    "pause": ["mail"],
    "resume": ["mail"],
    "pause-scope": ["mail", "send@1s=x"],
    "resume-scope": ["mail", "send@1s=x"],
    "cancel": ["waits"],
    "edit": ["waits", "--now"],
    "requeue": ["dies"],
    "prune": ["dies"],
    "enqueue": ["mail", "send", "--json-args", "{}"],
    "queue delete": ["mail"],
    "server prepare": [],
    "audit run": ["--once"],
    "replay": ["--queue", "mail", "--task", "send", "--dry-run"],
    "audit verify": [],
    "audit head": [],
    "audit history": ["dies"],
    "audit why": ["dies"],
    "audit at": ["2030-01-01"],
    "audit report": [],
    "audit tail": [],
    "audit restore": [],
    "audit prune": ["--older-than", "1d", "--dry-run"],
    "audit migrate": [],
    "audit off": ["mail"],
    "audit on": ["mail"],
    "audit rebind": [],
    "audit fork": [],
    "audit adopt": [],
}
SAY_NOTHING_OF_JOBS = {
    "worker": "its log is tested in tests/unit/test_support.py",
    "health": "the state of this machine's workers, from files of their own",
    "acl": "what it was given",
    "web serve": "its pages are tested in tests/web/test_hostile.py",
    "web token": "what it was given",
    "mcp": "JSON for a program: its answers are tested in tests/web/test_mcp.py",
    "server run": "the embedded server",
    "server status": "the embedded server",
    "server stop": "the embedded server",
    "audit grants": "what it was given",
    "inbox ddl": "its own statements",
    "inbox grants": "what it was given",
    "inbox migrate": "what it was given",
    **dict.fromkeys(
        (
            f"inbox {name}"
            for name in ("run", "status", "parked", "retry", "drop", "settle", "verify")
        ),
        "hostile rows are in tests/inbox/test_commands.py",
    ),
    "audit demo": "its own jobs",
    "demo": "its own jobs",
}


def commands(group: click.Group, *above: str) -> list[str]:
    found = []
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            path = (*above, name)
            if isinstance(command, click.Group):
                found += commands(command, *path)
            else:
                found.append(" ".join(path))
    return found


def test_every_command_is_tested_with_hostile_text_or_is_exempt_with_a_reason() -> None:
    assert set(commands(root)) <= CALLS.keys() | SAY_NOTHING_OF_JOBS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_commands_print_hostile_text_without_control_characters_and_extra_lines(
    name: str, planted: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_url, audit_url = planted
    monkeypatch.setenv("RQ_CORE_REDIS_URL", redis_url)
    monkeypatch.setenv("RQ_CORE_AUDIT_URL", audit_url)

    result = CliRunner().invoke(root, [*name.split(), *CALLS[name]], color=True)

    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Usage" not in result.output
    assert result.output
    assert_harmless(result.output)


def assert_harmless(output: str) -> None:
    for line in output.split("\n"):
        steering = [c for c in line if unicodedata.category(c) in ("Cc", "Cf", "Cs")]
        assert steering == [], (steering, line[:200])
        assert not line.startswith(FORGED), line[:200]
        assert len(line) <= LINE_MAX, line[:200]


FREE = HOSTILE[:200]
"""A name that no job, task or queue has. The answer of a command that finds nothing repeats this name."""
OTHER_ARGUMENTS = {"unique": [["mail", HOSTILE], ["mail", FREE], ["mail", "free", HOSTILE]]}
ENDLESS = {"--port", "--audit"}
"""Options with which a command would serve until it is stopped, or would create files."""
DESTROYING = {"audit run", "audit off", "audit fork", "queue delete"}
"""Commands that destroy what other commands would print. The test below does not call them."""


def hostile_calls(name: str) -> Iterator[list[str]]:
    """Yield calls of a command. Each call has the hostile text as one argument or as the value of one option."""
    command: click.Command = root
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    given = CALLS.get(name, [])
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            yield from (
                [*given[:at], HOSTILE, *given[at + 1 :]] for at in range(max(1, len(given)))
            )
        elif not getattr(parameter, "is_flag", False) and not ENDLESS.intersection(parameter.opts):
            yield [*given, parameter.opts[-1], HOSTILE]
    yield from OTHER_ARGUMENTS.get(name, [])


@pytest.mark.slow
def test_commands_print_their_arguments_without_control_characters(
    planted: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks hostile text in each argument and each option of the commands."""
    redis_url, audit_url = planted
    monkeypatch.setenv("RQ_CORE_REDIS_URL", redis_url)
    monkeypatch.setenv("RQ_CORE_AUDIT_URL", audit_url)
    for name in [*(CALLS.keys() - DESTROYING), "health", "acl", "audit grants", "server status"]:
        for words in hostile_calls(name):
            # With colours, since click takes some escapes out of what is piped.
            result = CliRunner().invoke(root, [*name.split(), *words], color=True)

            assert result.exception is None or isinstance(result.exception, SystemExit), words
            assert_harmless(result.output)


@pytest.mark.parametrize(
    "words",
    [["unique", "mail", FREE], ["jobs", "mail", "--task", FREE], ["health", "-q", FREE]],
    ids=lambda words: words[0],
)
def test_the_message_about_an_unknown_name_prints_the_name_without_control_characters(
    words: list[str], planted: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RQ_CORE_REDIS_URL", planted[0])

    result = CliRunner().invoke(root, words, color=True)

    assert "\\x1b[2J" in result.output
    assert_harmless(result.output)


def test_the_result_command_reports_a_log_without_tables_in_one_line(
    valkey_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "empty.db"
    file.touch()

    result = CliRunner().invoke(
        root, ["result", "j-1", "--redis", valkey_url, "--audit", str(file)]
    )

    assert (result.exit_code, result.output.count("\n")) == (1, 1), result.output
    assert "there is no audit log at" in result.output


PRINTERS = {
    ("text.py", "click.echo"), ("web.py", "click.echo"),
    ("acl.py", "click.echo"), ("metrics.py", "click.echo"), ("options.py", "click.echo"), ("root.py", "click.echo"),
    ("top.py", "terminal().print"),
    ("report.py", "console.print"), ("events.py", "console.print"), ("text.py", "console.print"),
}  # fmt: skip
"""Modules that may print with another function than `say` and `print_table`. They print texts of rq-core itself, JSON,
metrics or tables, or they escape the control characters first."""


def test_commands_print_only_through_the_expected_functions() -> None:
    found = {
        (path.name, printer)
        for package in (rq_core.cli, sql_audit.cli)
        for path in Path(package.__file__ or "").parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and (printer := ast.unparse(node.func))
        and (printer in ("print", "click.echo", "click.secho") or printer.endswith(".print"))
    }

    assert found == PRINTERS
