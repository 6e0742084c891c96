"""Errors of the command line. An error is one line, and the exit status is not 0."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rq_core.cli.root import root
from rq_core.views.text import one_line
from tests.cli.conftest import CommandLine

EVERY_VERB = [
    ("enqueue", "mail", "send"),
    ("queues",),
    ("job", "x"),
    ("dead", "mail"),
    ("cancel", "x"),
    ("edit", "x", "--now"),
    ("requeue", "x"),
    ("prune", "x"),
    ("pause", "mail"),
    ("resume", "mail"),
    ("set", "mail", "lease=30"),
    ("doctor",),
]
NO_SERVER = "redis://:secret@127.0.0.1:1/0"


@pytest.mark.parametrize("words", EVERY_VERB, ids=lambda words: words[0])
def test_the_error_of_an_unreachable_server_names_the_url_and_the_embedded_server(
    words: tuple[str, ...], cli: CommandLine
) -> None:
    said = cli.line(1, *words, url=NO_SERVER)

    assert said.startswith("no answer from Redis at redis://:***@127.0.0.1:1/0: ")
    assert "embedded://" in said


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost", "must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("redis://localhost:port", "(its port is not a number up to 65535)"),
        ("redis://localhost:70000", "(its port is not a number up to 65535)"),
        ("redis+sentinel://localhost:port/s", "(its port is not a number up to 65535)"),
        ("redis://localhost:6379/zero", "(its path /zero is not the number of a database, as in redis://HOST:6379/0)"),
        ("redis://localhost:6379/-1", "its path /-1 is not the number of a database"),
        ("redis+sentinel://localhost/s/mail", "mail is not the number of a database"),
        ("redis://localhost:6379/0?db=mail", "Invalid value for 'db'"),
        ("redis://localhost:6379/0?colour=blue",
            "redis='redis://localhost:6379/0' is not valid: must be a URL (it has no option colour: known are"),
        ("redis://localhost:6379/0?ssl_ca_certs=x", "no option ssl_ca_certs: known are"),
        ("unix:///no/such/socket?colour=blue", "no option colour: known are"),
        ("redis+sentinel://localhost/s?colour=blue", "no option colour: known are"),
        ("redis+cluster://localhost:1?colour=blue", "no option colour: known are"),
        ("rediss://localhost:1/0?ssl_cert_reqs=perhaps", "Invalid SSL Certificate"),
        ("embedded://x?idle=long", "idle must be a number of seconds"),
        ("unix:///no/such/socket", "no answer from Redis"),
        ("redis://no-such-host.invalid:6379", "no answer from Redis"),
    ],
)  # fmt: skip
def test_the_error_of_an_invalid_url_says_what_is_wrong_with_it(
    url: str, expected: str, cli: CommandLine
) -> None:
    result = cli("queues", "--redis", url)

    assert result.exit_code in {1, 2}
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("rq-core: ")
    assert expected in result.stderr


def test_a_database_number_that_the_server_lacks_is_reported(cli: CommandLine) -> None:
    said = cli.line(1, "queues", "--redis", f"{cli.url.removesuffix('/0')}/9999")

    assert "DB index is out of range" in said or "invalid DB index" in said


def test_the_error_of_a_refused_login_does_not_print_the_password(cli: CommandLine) -> None:
    said = cli.line(1, "queues", "--redis", cli.url.replace("//", "//user:secret@"))

    assert "secret" not in said


@pytest.fixture
def stranger() -> Iterator[str]:
    """Yield the URL of a server that does not speak the protocol of Redis."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    # Who ends a connection on which something is unread resets it, and what was said may be lost.
                    while connection.recv(4096):
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_server_that_speaks_another_protocol_is_reported_in_one_line(
    stranger: str, cli: CommandLine
) -> None:
    said = cli.line(1, "queues", "--redis", stranger)

    assert said.startswith(f"the server at {stranger} cannot be used: ")
    assert "Protocol" in said


@pytest.mark.parametrize(
    "words",
    [
        ("dead", "nowhere"),
        ("cancel", "x", "--queue", "nowhere"),
        ("job", "x", "--queue", "nowhere"),
        ("requeue", "--queue", "nowhere", "--state", "dead", "--yes"),
        ("prune", "--queue", "nowhere", "--state", "dead", "--dry-run"),
        ("pause", "nowhere"),
        ("resume", "nowhere"),
        ("set", "nowhere", "lease=30"),
        ("set", "nowhere"),
        ("doctor", "nowhere"),
    ],
    ids=" ".join,
)
def test_commands_do_not_create_a_queue_with_an_unknown_name_and_list_the_known_queues(
    words: tuple[str, ...], cli: CommandLine
) -> None:
    expected = "there is no queue 'nowhere' at this server: known are {}."
    assert expected.format("none") == cli.line(2, *words)
    cli.ok("enqueue", "mail", "send")
    cli.ok("enqueue", "sms", "send")

    assert expected.format("mail, sms") == cli.line(2, *words)
    assert [q["queue"] for q in cli.json("queues")] == ["mail", "sms"], "it was not made"


@pytest.mark.parametrize("command", ["jobs", "dead", "caps", "unique"])
def test_a_list_command_without_a_queue_shows_the_only_queue(
    command: str, cli: CommandLine
) -> None:
    assert cli.line(1, command) == "this server has no queue"
    cli.ok("enqueue", "mail", "send")
    assert cli.ok(command) == cli.ok(command, "mail")
    cli.ok("enqueue", "sms", "send")

    said = cli.line(2, command)

    assert said.startswith("give a queue: this server has mail, sms. Try ")


def test_the_error_of_a_job_that_is_not_live_names_the_command_audit_history(
    cli: CommandLine,
) -> None:
    assert cli.line(1, "job", "x") == "no live job x: this server has no queue"
    cli.ok("enqueue", "mail", "send")

    assert cli.line(1, "job", "x") == (
        "no live job x in mail. A finished job has left Redis; if the queue is mirrored,"
        " `rq-core audit history x --audit URL` knows it"
    )


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ("{to: a}", "is not JSON: Expecting property name"),
        ("", "is not JSON: Expecting value at character 1"),
        ("[1]", "must be a JSON object"),
        ('"text"', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ("1", "must be a JSON object"),
        ('{"n": NaN}', "has NaN, which is not JSON"),
        ('{"n": -Infinity}', "has -Infinity, which is not JSON"),
        ('{"a": 1, "a": 2}', "names an argument twice"),
        ('{"a": "\\ud800"}', "has text that is not valid Unicode"),
        ('{"a": ' + "[" * 200_000, "cannot be read"),
        ('{"a": ' + "9" * 5_000 + "}", "cannot be read"),
    ],
    ids=lambda text: text[:20],
)
def test_arguments_that_are_not_a_json_object_are_refused_before_anything_is_sent(
    args: str, expected: str, cli: CommandLine
) -> None:
    said = cli.line(2, "enqueue", "mail", "send", "--json-args", "-", stdin=args)

    assert said.startswith(f"--json-args {expected}")
    assert cli.json("queues") == [], "nothing was sent"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("to=a",), "Got unexpected extra argument (to=a)"),
        (('{"to": "a"}',), 'Got unexpected extra argument ({"to": "a"})'),
        (("--to", "a"), "No such option '--to'"),
        (("--args", "{}"), "No such option '--args'"),
    ],
    ids=str,
)
def test_the_error_of_arguments_in_the_wrong_place_names_the_option_json_args(
    words: tuple[str, ...], expected: str, cli: CommandLine
) -> None:
    said = cli.line(2, "enqueue", "mail", "send", *words)

    assert said.startswith(expected)
    assert (
        """: the task's arguments go into --json-args, as in --json-args '{"to": "a@b.c"}'."""
        in said
    )


def test_the_error_of_arguments_beyond_the_size_limit_states_the_limit(cli: CommandLine) -> None:
    large = '{"a": "' + "x" * 2**20 + '"}'

    said = cli.line(2, "enqueue", "mail", "send", "--json-args", "-", stdin=large)

    assert "max_payload is 1048576" in said


@pytest.mark.parametrize(
    "words",
    [
        ("enqueue", "{mail}", "send"),
        ("enqueue", "my mail", "send"),
        ("enqueue", "", "send"),
        ("enqueue", "mail", "send it"),
        ("enqueue", "mail", "send", "--id", "a|b"),
        ("enqueue", "mail", "send", "--prefix", "a b"),
        ("enqueue", "m" * 129, "send"),
        ("pause", "{mail}"),
        ("doctor", "{mail}"),
        ("dead", "mail\n"),
        ("job", "a b"),
        ("cancel", "a b"),
        ("requeue", "a|b", "--queue", "mail"),
        ("pause", "mail", "--by", "Ada Lovelace"),
        ("worker", "tasks:app", "--queues", "a,,b"),
    ],
    ids=repr,
)
def test_the_error_of_an_invalid_name_states_the_rule_for_names(
    words: tuple[str, ...], cli: CommandLine
) -> None:
    cli.ok("enqueue", "mail", "send")

    said = cli.line(2, *words)

    assert "is not valid: use 1 to 128 of the characters A-Z a-z 0-9 _ . : -" in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("nothing",), "No such command 'nothing'. Try"),
        (("helth",), "No such command 'helth'. Did you mean 'health'? Try"),
        (("audit", "verfy"), "Did you mean 'verify'? Try"),
        (("queues", "--colour"), "No such option"),
        (("--colour", "queues"), "No such option"),
        (("--redis", "redis://localhost", "top"), "--redis belongs after the command: `root top --redis …`"),
        (("-q", "mail", "workers"), "-q belongs after the command: `root workers -q …`"),
        (("--audit", "a.db", "audit", "tail"), "--audit belongs after the command: `root audit tail --audit …`"),
        (("audit", "--audit", "a.db", "tail"), "--audit belongs after the command: `root audit tail --audit …`"),
        (("server", "--redis", "redis://localhost", "prepare"),
            "--redis belongs after the command: `root server prepare --redis …`"),
        (("enqueue", "mail"), "Missing argument 'TASK'"),
        (("enqueue", "mail", "send", "--delay", "soon"), "'soon' is not a valid float"),
        (("enqueue", "mail", "send", "--delay", "-1"), "delay=-1.0 is not valid"),
        (("enqueue", "mail", "send", "--delay", "inf"), "delay=inf is not valid"),
        (("enqueue", "mail", "send", "--delay", "nan"), "delay=nan is not valid"),
        (("enqueue", "mail", "send", "--priority", "urgent"), "'urgent' is not one of"),
        (("enqueue", "mail", "send", "--max-attempts", "0"), "max_attempts=0 is not valid"),
        (("cancel",), "give ids of jobs, or a filter with --dry-run or --yes"),
        (("requeue", "--queue", "mail"), "give ids of jobs, or a filter with --dry-run or --yes"),
        (("requeue", "x", "--state", "dead"), "--state does not go with ids of jobs"),
        (("prune", "x", "--dry-run"), "--dry-run does not go with ids of jobs"),
        (("cancel", "--queue", "mail", "--task", "send"), "give either --dry-run"),
        (("cancel", "--queue", "mail", "--task", "send", "--yes", "--dry-run"), "give either --dry-run"),
        (("cancel", "--task", "send", "--yes"), "give --queue QUEUE"),
        (("cancel", "--queue", "mail", "--yes"), "give another term than --queue"),
        (("cancel", "--queue", "mail", "--state", "lost", "--yes"), "must be states of these"),
        (("cancel", "--queue", "mail", "--state", "dead", "--yes"), "cancel changes no others"),
        (("cancel", "--queue", "mail", "--older", "soon", "--yes"), "older='soon' is not valid"),
        (("cancel", "--queue", "mail", "--header", "x", "--yes"), "must be NAME=VALUE"),
        (("cancel", "--queue", "mail", "--where", "colour:red", "--yes"), "must have words of these"),
        (("cancel", "--queue", "mail", "--task", "send", "--yes", "--resume", "x"), "must be the place"),
        (("edit", "--queue", "mail", "--task", "send", "--yes", "--now", "--if-line", "x"), "--if-line is for jobs"),
        (("set", "mail", "colour=blue"), "'colour=blue' is not a setting"),
        (("set", "mail", "lease"), "'lease' is not a setting"),
        (("set", "mail", "lease=long"), "lease must be a number, not 'long'"),
        (("set", "mail", "backlog-max-jobs=1.5"), "backlog-max-jobs must be a number"),
        (("set", "mail", "lease=0.1"), "lease=0.1 is not valid: must be seconds (or a timedelta) from 0.2"),
        (("set", "mail", "lease=0"), "lease=0.0 is not valid: must be seconds (or a timedelta) from 0.2"),
        (("set", "mail", "lease=-1"), "lease=-1.0 is not valid"),
        (("set", "mail", "lease=nan"), "lease=nan is not valid"),
        (("worker", "tasks.py"), "give the module's name, not the file's"),
        (("worker", ":app"), "':app' is not an app: give MODULE:APP"),
        (("worker", "no_such_module:app"), "there is no module no_such_module"),
        (("worker", "json:app"), "json has no App named app"),
        (("worker", "t:a", "--concurrency", "0"), "0 is not in the range 1<=x<=5000"),
        (("worker", "t:a", "--log-format", "xml"), "'xml' is not one of"),
        (("dead", "mail", "--limit", "9" * 20), "is not in the range 1<=x<=1000000000"),
        (("audit", "tail", "-n", "9" * 20), "is not in the range 0<=x<=1000000000"),
        (("audit", "report", "--slowest", "9" * 20), "is not in the range 0<=x<=1000000000"),
        (("audit", "run", "-q", "", "--audit", "x.db"), "queue name '' is not valid"),
        (("audit", "at", "9" * 16, "-q", "mail"), "'9999999999999999' is not a time: write 2026-"),
        (("enqueue", "q", "t", "--app", "no_such_module"), "there is no module no_such_module"),
        (("server", "run", "--idle", "0"), "must be a positive number of seconds"),
        (("queues", "--by\udcff"), "argument 2 is not valid UTF-8"),
    ],
    ids=lambda words: (
        " ".join(words).encode("ascii", "replace").decode() if isinstance(words, tuple) else ""
    ),
)  # fmt: skip
def test_the_error_of_wrong_usage_suggests_the_right_usage(
    words: tuple[str, ...], expected: str, cli: CommandLine
) -> None:
    cli.ok("enqueue", "mail", "send")

    assert expected in cli.line(2, *words)


def test_a_plugin_that_cannot_be_imported_is_listed_and_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from importlib.metadata import EntryPoint

    point = EntryPoint("shiny", "no_such_module:command", "rq_core.commands")
    monkeypatch.setattr("rq_core.model.plugins.commands", lambda: {"shiny": point})

    said = cli.line(1, "shiny")

    assert "the command shiny of no_such_module:command cannot be imported" in said
    assert re.search(r"shiny +A plugin that cannot be used\.", cli.ok("--help")), "yet it is listed"


def test_a_directory_that_cannot_hold_the_embedded_server_is_reported(
    cli: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    said = cli.line(1, "queues", "--redis", f"embedded://{tmp_path}/file/data")

    assert "cannot keep an embedded server's data" in said


def test_an_unexpected_error_shows_its_traceback(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a plugin's command with a bug. Python prints the traceback."""

    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    class Point:
        value = "here"

        def load(self) -> click.Command:
            return broken

    monkeypatch.setattr("rq_core.model.plugins.commands", lambda: {"broken": Point()})

    with pytest.raises(ZeroDivisionError):
        cli("broken")


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interrupted_command_prints_nothing_and_exits_with_130(
    error: type[BaseException], cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise error

    monkeypatch.setattr("rq_core.cli.commands.lists.connect", interrupt)

    result = cli("queues")

    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "")


def test_errors_are_printed_without_passwords_and_line_breaks() -> None:
    text = "at redis://user:p@ss@host\n  and postgresql://u:secret@h/db \udcff"

    assert one_line(text) == "at redis://user:***@host and postgresql://u:***@h/db \\udcff"


def test_the_help_of_verify_prints_the_cron_lines_unwrapped(cli: CommandLine) -> None:
    """Checks the lines for cron in a help text. A marker in the text keeps click from joining these lines."""
    lines = [line.strip() for line in cli.ok("audit", "verify", "--help").splitlines()]

    assert "*/10 * * * *  rq-core audit head --queue mail >> /var/backups/heads" in lines


def test_every_command_has_help(cli: CommandLine) -> None:
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert "Usage:" in cli.ok(name, "--help")


def test_no_help_text_shows_the_marker_of_click_for_unwrapped_text() -> None:
    """Checks the docstrings of all commands. A raw docstring would print the marker as text."""
    helps = [command.help or "" for command in _commands(root)]

    assert len(helps) > 30
    assert [text for text in helps if "\\b" in text] == []


def _commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from _commands(command)
