"""`rq-core top` shows queues and their problems in a terminal of any width, without changing anything."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pty
import re
import signal
import sys
import time

import pytest
from rich.console import Console

from rq_core.cli.commands.top import Frame, document_of, render
from rq_core.connections.client import Client
from rq_core.metrics.causes import Unread
from rq_core.model.job import NewJob, profile
from rq_core.model.plugins import EndedClaims, LogOverview
from rq_core.protocol.calls import claims
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from tests.cli.conftest import CommandLine
from tests.kit.wait import wait_until

SAYS = Presence("web-1", 1, "0.1.0", "c0de0001", ("mail",), 10, 1, 0)
LONG = "a-queue-with-a-name-" + "x" * 108


def printed(frame: Frame, before: Frame | None, width: int) -> str:
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123 - nobody reads it
    console.print(render(frame, before, width))
    console.file.close()
    return console.export_text()


def frame(client: Client, at: float = 0.0, ended: int | None = None) -> Frame:
    log = None
    if ended is not None:
        log = LogOverview((), (EndedClaims("mail", "send", "succeeded", ended, 0, 0),))
    return Frame(client.run(client.calls.reads.overview()), log, at)


def test_the_top_command_with_the_option_once_shows_queues_and_causes(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "mail", "send", "--delay", "60")

    shown = cli.ok("top", "--once")

    assert "! mail: 1 ready, and no worker runs  RqCoreNoWorker" in shown
    assert "1 queue · 0 workers" in shown
    assert re.search(r"mail +1 +\d+ s +0 +0 +0 +1 +0 +off", shown)


def test_the_top_command_shows_how_many_jobs_are_parked_and_for_how_long(
    client: Client,
) -> None:
    assert client.run(client.calls.enqueue.many([NewJob("a", "mail", profile("send"), "{}")]))
    assert "parked" not in printed(frame(client), None, 120)
    (queue,) = client.run(client.calls.reads.overview()).queues
    state = dataclasses.replace(
        client.run(client.calls.reads.overview()),
        queues=(dataclasses.replace(queue, parked=12, oldest_parked_ms=3 * 86_400_000),),
    )

    shown = printed(Frame(state, None, 0.0), None, 120)

    assert re.search(r"backlog +parked", shown)
    assert re.search(r"12, 3 d", shown)


def test_the_top_command_with_the_option_json_prints_queues_and_causes(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send")

    shown = cli.json("top")

    assert shown["up"] is True
    assert shown["queues"][0]["queue"] == "mail"
    assert shown["causes"] == [
        {
            "alert": "RqCoreNoWorker",
            "queue": "mail",
            "says": "1 ready, and no worker runs",
        }
    ]


@pytest.mark.parametrize("width", [30, 57, 60, 119, 120, 200])
def test_no_line_of_the_top_command_is_wider_than_the_terminal(
    cli: CommandLine, client: Client, width: int
) -> None:
    for queue in ("mail", LONG):
        for _ in range(3):
            cli.ok("enqueue", queue, "send")

    shown = printed(frame(client), None, width)

    assert max(map(len, shown.splitlines())) <= width
    assert re.search(r"mail.* 3 ", shown)
    assert ("dead" in shown, "backlog" in shown) == (width >= 60, width >= 119)


def test_the_top_command_on_a_narrow_terminal_keeps_the_column_that_shows_the_cause(
    cli: CommandLine, client: Client
) -> None:
    """Checks 60 columns. The blocked lanes stay visible if a cap is full, and the backlog if the mirror is late."""
    for job_id in ("j-1", "j-2"):
        job = NewJob(job_id, "mail", profile("send"), "{}", 0, "2+task=send")
        client.run(client.calls.enqueue.many([job]))
    client.run(client.calls.caps.change("mail", "task=send", 0, by="op", why=""))
    client.run(claims.claim("mail", "w-1", 1))
    client.run(worker_registry.announce("rqc", "w-1", SAYS, ["mail"], ["send"]))
    full = printed(frame(client), None, 60)
    cli.ok("enqueue", "sms", "send")
    client.run(worker_registry.announce("rqc", "w-1", SAYS, ["sms"], ["send"]))
    client.run(client.calls.audit.attach("sms", "a-1"))
    behind = frame(client)
    sms = dataclasses.replace(behind.state.queues[1], oldest_event_ms=600_000, backlog=6)  # type: ignore[union-attr]
    mirror = printed(
        behind._replace(state=dataclasses.replace(behind.state, queues=(sms,))), None, 60
    )

    assert "the cap of task=send is full" in " ".join(full.split())
    assert "RqCoreScopeFull" in " ".join(full.split())
    assert re.search(r"blocked lanes *\n", full)
    assert "backlog" not in full
    assert "RqCoreMirrorBehind" in " ".join(mirror.split())
    assert re.search(r"backlog *\n", mirror)
    assert "blocked lanes" not in mirror


def test_the_environment_variable_columns_sets_the_width_of_the_top_command_in_a_pipe(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli.ok("enqueue", "mail", "send")
    assert "blocked lanes" in cli.ok("top", "--once")
    monkeypatch.setenv("COLUMNS", "60")

    shown = cli.ok("top", "--once")

    assert max(map(len, shown.splitlines())) <= 60
    assert "blocked lanes" not in shown


def test_the_top_command_computes_rates_from_two_consecutive_reads(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    before = frame(client, at=10.0, ended=100)
    for _ in range(4):
        cli.ok("enqueue", "mail", "send")

    shown = printed(frame(client, at=12.0, ended=150), before, 200)

    assert re.search(r"mail +5 +\+2 ", shown)
    assert re.search(r" 25\.0", shown)


def test_the_top_command_shows_no_cause_for_a_healthy_queue(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    says = Presence("web-1", 1, "0.1.0", "c0de0001", ("mail",), 10, 1, 0)
    client.run(worker_registry.announce("rqc", "w-1", says, ["mail"], ["send"]))

    shown = printed(frame(client), None, 120)

    assert shown.startswith("nothing is wrong")
    assert "1 of 10 places busy" in shown


def test_the_top_command_lists_stuck_queues_first_and_no_more_queues_than_fit(
    cli: CommandLine, client: Client
) -> None:
    for n in range(30):
        cli.ok("enqueue", f"q{n:02}", "send")
        says = Presence("web-1", 1, "0.1.0", "c0de0001", (f"q{n:02}",), 10, 1, 0)
        if n != 29:
            client.run(worker_registry.announce("rqc", "w-1", says, [f"q{n:02}"], ["send"]))
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render(frame(client), None, 100, 24))

    lines = console.export_text().splitlines()

    assert len(lines) <= 24
    assert next(line for line in lines if re.match(r" q\d", line)).startswith(" q29")
    assert re.search(r"and \d\d queues more; rq-core queues shows all", lines[-1])


@pytest.mark.parametrize("width", [1, 8, 20])
def test_the_top_command_works_on_a_very_narrow_terminal(
    cli: CommandLine, client: Client, width: int
) -> None:
    cli.ok("enqueue", LONG, "send")

    assert max(map(len, printed(frame(client), None, width).splitlines())) <= width


def test_the_top_command_prints_an_error_text_as_one_short_line(
    cli: CommandLine, client: Client
) -> None:
    cli.ok("enqueue", "mail", "send")
    away = Frame(Unread("\x1b[2J\n" * 200_000), None, 0.0)

    shown = printed(away, None, 100)

    assert len(shown) < 2_000
    assert "\x1b" not in shown


def test_the_top_command_shows_the_errors_of_redis_and_of_the_log() -> None:
    away = Frame(Unread("no answer"), Unread("no answer either"), 0.0)

    assert "! no answer" in printed(away, None, 120)
    assert (document_of(away)["up"], document_of(away)["audit_up"]) == (False, False)


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "redis://user:wrong@%s/0"])
def test_the_top_command_with_the_option_once_fails_if_redis_is_unreachable(
    cli: CommandLine, url: str
) -> None:
    url = url.replace("%s", cli.url.partition("//")[2].partition("/")[0])

    once, document = (cli("top", how, url=url) for how in ("--once", "--json"))

    assert (once.exit_code, document.exit_code) == (1, 1)
    alert = "RqCoreRedisRefuses" if "wrong" in url else "RqCoreRedisDown"
    assert alert in once.stdout
    assert json.loads(document.stdout)["up"] is False


@pytest.mark.parametrize(("key", "status"), [(b"\x03", 130), (b"xq", 0)])
@pytest.mark.slow
def test_the_top_command_refreshes_until_q_or_ctrl_c(
    cli: CommandLine, key: bytes, status: int
) -> None:
    cli.ok("enqueue", "mail", "send")
    command = [sys.executable, "-m", "rq_core.cli", "top", "--every", "0.5", "--redis", cli.url]
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        # Whoever runs the tests in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(command[0], command)  # noqa: S606 - no shell
    seen = bytearray()
    os.set_blocking(terminal, False)

    def shows(words: bytes) -> bool:
        with contextlib.suppress(OSError):
            seen.extend(os.read(terminal, 65_536))
        return words in bytes(seen)

    wait_until(lambda: shows(b"1 ready, and no worker"), "it shows the queue", timeout=20)
    cli.ok("enqueue", "mail", "send")
    wait_until(lambda: shows(b"2 ready, and no worker"), "it looks again", timeout=20)
    os.write(terminal, key)
    deadline = time.monotonic() + 10
    while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        shows(b"")
    os.close(terminal)

    assert ended[0] == pid
    assert os.waitstatus_to_exitcode(ended[1]) == status


def test_the_top_command_lists_the_most_urgent_causes_first(
    cli: CommandLine, client: Client
) -> None:
    """Checks an unreadable queue among fourteen paused queues."""
    for n in range(14):
        cli.ok("enqueue", f"q{n:02}", "send")
        cli.ok("pause", f"q{n:02}")
        says = Presence("web-1", 1, "0.1.0", "c0de0001", (f"q{n:02}",), 10, 1, 0)
        client.run(worker_registry.announce("rqc", "w-1", says, [f"q{n:02}"], ["send"]))
    cli.ok("enqueue", "z", "send")
    client.run(client.calls.delivery.ask([["HSET", "rqc:{z}:meta", "layout", "99"]]))
    console = Console(width=100, record=True, file=io.StringIO())

    console.print(render(frame(client), None, 100, 40))

    shown = console.export_text().splitlines()
    assert shown[0].startswith("! z: cannot be read: queue 'z' has layout 99")
    assert "and 3 more; 0 of them page" in shown
    assert cli.json("top")["causes"][0]["queue"] == "z"
    printed_once = cli.ok("top", "--once")
    assert printed_once.count("paused, and 1 job is ready") == 14
    assert "of them page" not in printed_once


def test_without_an_audit_url_rq_core_top_shows_the_age_of_the_oldest_event(
    cli: CommandLine, client: Client
) -> None:
    """Checks a mirror that died days ago. Its operator sees this without the audit database."""
    cli.ok("enqueue", "mail", "send")
    assert "the audit log was not read" not in cli.ok("top", "--once")
    client.run(client.calls.audit.attach("mail", "a-1"))
    assert "the audit log was not read: give --audit URL" in cli.ok("top", "--once")
    cli.ok("enqueue", "mail", "send")
    client.run(client.calls.delivery.ask([["DEL", "rqc:{mail}:outbox"]]))
    for n, days in ((1, 9), (2, 3)):
        at = int(time.time() * 1000) - days * 86_400_000
        entry = ["XADD", "rqc:{mail}:outbox", f"1-{n}", "e", "paused", "at", at]
        client.run(client.calls.delivery.ask([entry]))

    shown = cli.ok("top", "--once")
    causes = [each["says"] for each in cli.json("top")["causes"]]

    assert "the oldest event has waited for the mirror for 3 d, in mail" in " ".join(shown.split())
    assert any(says.startswith("the mirror is at least 3 d behind") for says in causes)
