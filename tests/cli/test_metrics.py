"""`rq-core metrics` serves metrics to Prometheus until it gets a signal to stop."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from pathlib import Path

import psutil

from rq_core.metrics.table import FAMILIES
from rq_core.process import http_port
from tests.cli.conftest import CommandLine
from tests.kit.processes import Child
from tests.kit.servers import free_port
from tests.kit.wait import wait_until
from tests.metrics.scrape import get, parsed, value


def test_the_metrics_command_answers_over_http_until_it_is_stopped(
    cli: CommandLine, tmp_path: Path
) -> None:
    cli.ok("enqueue", "mail", "send")
    port = free_port()
    command = [sys.executable, "-m", "rq_core.cli", "metrics", "--listen", str(port)]
    with Child([*command, "--redis", cli.url], tmp_path / "log") as process:
        wait_until(lambda: get(port)[0] == 200, "it answers", timeout=20)
        found = parsed(get(port)[1])
        before = psutil.Process(process.pid).num_fds()
        with contextlib.ExitStack() as slow:
            for _ in range(60):
                client = slow.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.sendall(b"G")
            assert get(port)[0] == 200
            held = psutil.Process(process.pid).num_fds() - before
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        said = process.said()

    assert value(found, "rqc_queue_jobs", queue="mail", state="ready") == 1
    assert held <= http_port.CONNECTIONS_MAX
    assert (process.returncode, said) == (0, f"metrics at http://127.0.0.1:{port}/metrics\n")


def test_metrics_once_prints_the_same_metrics_as_a_scrape(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send")

    found = parsed(cli.ok("metrics", "--once"))

    assert value(found, "rqc_up") == 1
    assert value(found, "rqc_workers", queue="mail") == 0


def test_metrics_list_names_every_metric(cli: CommandLine) -> None:
    shown = cli.ok("metrics", "--list")

    assert [family.name for family in FAMILIES if family.name not in shown] == []


def test_an_invalid_address_is_reported_with_its_option(cli: CommandLine) -> None:
    assert "listen='here'" in cli.line(2, "metrics", "--listen", "here")


def test_the_metrics_command_reports_an_unreachable_server(
    cli: CommandLine,
) -> None:
    done = cli("metrics", "--once", "--redis", f"redis://127.0.0.1:{free_port()}/0")
    found = parsed(done.stdout)

    assert (done.exit_code, done.stderr) == (1, "")
    assert value(found, "rqc_up") == 0
