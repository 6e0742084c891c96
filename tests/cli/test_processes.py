"""The command line as a separate process: its speed, signals, pipes, workers, and the embedded server."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click
import pytest

from rq_core.connections.client import Client
from rq_core.embedded import server
from sql_audit.cli import audit
from tests.kit.processes import ROOT, python, rq_core
from tests.kit.wait import wait_until

COMMAND = [sys.executable, "-m", "rq_core.cli"]


@pytest.fixture
def shell(valkey_url: str) -> Callable[..., CompletedProcess[str]]:
    def run(*words: str, **options: Any) -> CompletedProcess[str]:
        return rq_core(*words, env=environment(valkey_url), **options)

    return run


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "RQ_CORE_REDIS_URL": url, "PYTHONPATH": str(ROOT)}


def help_and_modules(*words: str) -> tuple[str, set[str]]:
    """Return the output of a help command, and the names of the modules that it imported."""
    program = (
        "import sys; from rq_core.cli.root import root\n"
        f"try: root.main({[*words]})\n"
        "except SystemExit: print(sorted(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout, set(eval(done.stderr))  # noqa: S307 - our own list


def test_help_imports_no_slow_module() -> None:
    """Checks that `--help` prints at once. Only commands that need a slow module import it."""
    text, modules = help_and_modules("--help")

    slow = {"redis", "hiredis", "pydantic", "rich", "sqlalchemy", "alembic", "asyncio"}
    slow |= {"hashlib", "http", "logging", "ssl", "subprocess"}
    ours = {
        "rq_core", "rq_core.errors", "rq_core.masking", "rq_core.model", "rq_core.model.lib", "rq_core.model.plugins",
        "rq_core.signals",
        "rq_core.model.lib.text", "rq_core.model.lib.url",
    }  # fmt: skip
    ours |= {"rq_core.cli", *(f"rq_core.cli.{name}" for name in ("lazy", "root", "text"))}
    ours |= {"rq_core.views", "rq_core.views.text"}
    plugins = {"sql_audit", "sql_audit.cli", "sql_audit.cli.inbox", "sql_audit.cli.root"}
    plugins |= {"sql_audit.demo", "sql_audit.demo.command"}
    assert "Commands:" in text
    assert set() == slow & modules
    assert ours == {name for name in modules if name.split(".")[0] == "rq_core"}
    assert plugins == {name for name in modules if name.split(".")[0] == "sql_audit"}


def test_help_of_audit_imports_none_of_its_commands() -> None:
    text, modules = help_and_modules("audit", "--help")

    assert "  verify   Prove the log from SQL" in text
    assert "..." not in text.partition("Commands:")[2], "sentences are whole"
    assert {"sql_audit", "sql_audit.cli", "sql_audit.cli.inbox", "sql_audit.cli.root"} == {
        name for name in modules if name.startswith("sql_audit")
    }


def test_help_of_audit_has_the_first_sentence_of_each_command() -> None:
    """Checks the sentences in the list of commands. They are stored apart, so that the list imports no command."""
    context = click.Context(audit)
    for name, listed in audit.commands.items():
        command = audit.get_command(context, name)

        assert command is not None
        assert (name, command.get_short_help_str(1_000)) == (
            command.name,
            listed.get_short_help_str(1_000),
        )


def test_a_command_reports_an_error_in_one_line(
    shell: Callable[..., CompletedProcess[str]],
) -> None:
    done = shell("pause", "nowhere")

    assert done.returncode == 2
    assert done.stderr == ("rq-core: there is no queue 'nowhere' at this server: known are none.\n")


def test_an_argument_that_is_not_utf_8_is_refused(
    shell: Callable[..., CompletedProcess[str]],
) -> None:
    done = shell("enqueue", "mail", "send", "--json-args", os.fsdecode(b'{"a": "\xff"}'))

    assert done.returncode == 2
    assert done.stderr.startswith("rq-core: argument 5 is not valid UTF-8")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_command_prints_no_error_if_the_reader_of_its_pipe_has_gone(valkey_url: str) -> None:
    with Client(valkey_url) as client:
        for n in range(200):
            client.run(client.calls.delivery.handshake(f"queue-{n}"))
    for words in (["queues"], ["queues", "--json"]):
        process = subprocess.Popen(
            [*COMMAND, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(valkey_url),
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        with process.stderr:
            said = process.stderr.read()
        process.wait(30)

        assert said == b""


def test_ctrl_c_prints_no_traceback() -> None:
    """Checks a command that waits for a silent server when the user presses Ctrl-C."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        with subprocess.Popen(
            [*COMMAND, "queues"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(url),
            # A shell's background job ignores it, and so would what it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        ) as process:
            connection, _ = listener.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                process.wait(30)
            assert process.stderr is not None
            said = process.stderr.read()

    assert (process.returncode, said) == (130, b"")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(
        "from pathlib import Path\n"
        "from rq_core import App\n"
        "app = App()\n"
        "app.queue('q1')\n"
        "@app.task\n"
        "def write(path: str, text: str) -> None:\n"
        "    Path(path).write_text(text)\n"
    )
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_runs_a_job_that_the_command_line_enqueued(
    processes: str,
    project: Path,
    shell: Callable[..., CompletedProcess[str]],
) -> None:
    out = project / "out"
    args = json.dumps({"path": str(out), "text": "done"})
    shell("enqueue", "q1", "write", "--app", "tasks", "--json-args", args, cwd=project)

    done = shell(
        *("worker", "tasks:app", "--queues", "q1,q2", "--burst", "--processes", processes),
        *("--log-format", "json", "--concurrency", "2"),
        cwd=project,
    )

    assert done.returncode == 0, done.stderr
    assert out.read_text() == "done"
    assert "worker started" in {json.loads(line)["message"] for line in done.stderr.splitlines()}


def test_the_error_of_a_missing_module_names_the_directory_that_was_searched(
    project: Path, shell: Callable[..., CompletedProcess[str]]
) -> None:
    done = shell("worker", "task:app", cwd=project)

    assert done.returncode == 2
    assert done.stderr == (
        "rq-core: target='task:app' is not valid: must be module:app; there is no module task in "
        f"{project}, nor an installed one.\n"
    )


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "data"
    yield place
    server.stop_server(place)


@pytest.mark.slow
def test_the_command_line_starts_and_stops_the_embedded_server(
    directory: Path, shell: Callable[..., CompletedProcess[str]]
) -> None:
    where = ("--dir", str(directory))
    assert shell("server", "status", *where).returncode == 1
    url = f"embedded://{directory}"

    enqueued = shell("enqueue", "mail", "send", "--redis", url)

    assert f"embedded:// started the server of {directory}, which ends after" in enqueued.stderr
    job_id = enqueued.stdout.strip()
    assert (
        json.loads((found := shell("job", job_id, "--json", "--redis", url)).stdout)["state"]
        == "ready"
    )
    assert found.stderr == ""
    status = shell("server", "status", *where)
    assert status.returncode == 0
    assert status.stdout.startswith("running for ")
    found = json.loads(shell("server", "status", "--json", *where).stdout)
    assert (True, str(directory)) == (found["running"], found["directory"])
    again = shell("server", "run", *where)
    assert again.returncode == 1
    assert "a server for" in again.stderr.splitlines()[-1]
    assert shell("server", "stop", *where).stdout == "stopped\n"
    assert shell("server", "stop", *where).stdout.startswith("no server runs for ")
    assert shell("job", job_id, "--redis", url).returncode == 0, "jobs outlive the server"


def test_server_run_ends_at_ctrl_c(directory: Path, tmp_path: Path) -> None:
    words = ("rq_core.cli", "server", "run", "--dir", str(directory))
    with python(*words, log=tmp_path / "server.log") as process:
        wait_until(lambda: server.server_status(directory).running, "the server runs", timeout=30)
        said = process.end()

    assert said == f"embedded://{directory}; Ctrl-C ends it\n"
    assert not server.server_status(directory).running


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import helper\n", "ZeroDivisionError: division by zero ({here}/helper.py:2)"),
        ("import json\njson.loads('')\n", "JSONDecodeError: Expecting value"),
        ("\n\ndef f(:\n", "SyntaxError: invalid syntax (tasks.py, line 3) ({here}/tasks.py:3)"),
        ("import nowhere\n", "ModuleNotFoundError: No module named 'nowhere' ({here}/tasks.py:1)"),
        ("raise SystemExit\n", "SystemExit ({here}/tasks.py:1)"),
    ],
    ids=["own", "library", "syntax", "missing", "exit"],
)
def test_a_worker_reports_a_module_that_cannot_be_imported_in_one_line(
    text: str,
    expected: str,
    tmp_path: Path,
    shell: Callable[..., CompletedProcess[str]],
) -> None:
    (tmp_path / "helper.py").write_text("# Broken.\n1 / 0\n")
    (tmp_path / "tasks.py").write_text(text)

    quiet = shell("worker", "tasks", cwd=tmp_path)
    loud = shell("worker", "tasks", "--verbose", cwd=tmp_path)

    assert quiet.returncode == 2
    assert len(quiet.stderr.splitlines()) == 1
    assert quiet.stderr.startswith("rq-core: module 'tasks' cannot be imported: ")
    assert expected.format(here=tmp_path) in quiet.stderr
    assert loud.stderr.endswith(quiet.stderr)
    assert loud.stderr.startswith("Traceback (most recent call last):")
    assert f'File "{tmp_path}/tasks.py", line' in quiet.stderr + loud.stderr
