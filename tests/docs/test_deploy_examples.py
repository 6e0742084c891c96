"""The files of docs/examples/deploy. Their commands exist, their probes see a worker, and their stop times are long
enough."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from rq_core.cli.root import root
from rq_core.metrics.table import FAMILIES
from tests.docs.transcript import DOCS, EXAMPLES
from tests.kit.processes import Child, rq_core
from tests.kit.servers import RedisServer, free_port
from tests.kit.wait import wait_until

DEPLOY = EXAMPLES / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
STOPS_WITHIN_S = 20
"""Seconds that a worker needs after its grace."""


def unit(path: Path) -> configparser.SectionProxy:
    """Return the section of a systemd unit that starts the process."""
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[method-assign,assignment]  # names of systemd have capitals
    found.read(path)
    return found["Service"]


def containers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each container of the Kubernetes objects with its pod's specification."""
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    pods = [each["spec"]["template"]["spec"] for each in objects]
    return [(pod, container) for pod in pods for container in pod["containers"]]


def lines_of_dockerfile() -> dict[str, str]:
    """Return the last line of each kind of instruction in the container file."""
    found = (line.partition(" ") for line in (DEPLOY / "Dockerfile").read_text().splitlines())
    return {name: rest for name, _, rest in found if name.isupper()}


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Return the options of a command of rq-core, as its parser reads them.

    Raises click.UsageError for an unknown command or option.
    """
    command: click.Command = root
    rest, context = list(words), None
    while isinstance(command, click.Group):
        context = command.make_context("rq-core", list(rest), parent=context)
        _, command, rest = command.resolve_command(context, rest)  # type: ignore[assignment]
    return command.make_context(words[0], rest, parent=context).params


def commands() -> dict[str, list[str]]:
    """Return the words after ``rq-core`` of each command in the files."""
    found = {path.name: shlex.split(unit(path)["ExecStart"])[1:] for path in UNITS}
    found |= {each["name"]: each["args"] for _, each in containers()}
    docker = lines_of_dockerfile()
    assert json.loads(docker["ENTRYPOINT"]) == ["rq-core"]
    found["container"] = json.loads(docker["CMD"])
    return found


def test_each_command_of_the_deploy_examples_exists_with_its_options() -> None:
    names = {name: words[0] for name, words in commands().items()}
    assert len(UNITS) == 2
    assert len(names) == 6
    for words in commands().values():
        options_of(words)
    with pytest.raises(click.UsageError):
        options_of(["worker", "shop", "--healthy"])


def test_each_deploy_example_gives_its_workers_more_time_to_stop_than_their_grace() -> None:
    for path in UNITS:
        words = shlex.split(unit(path)["ExecStart"])[1:]
        grace = options_of(words).get("grace", 0)
        assert int(unit(path)["TimeoutStopSec"]) >= grace + STOPS_WITHIN_S
    for pod, container in containers():
        if container["args"][0] == "worker":
            grace = options_of(container["args"])["grace"]
            assert pod["terminationGracePeriodSeconds"] >= grace + STOPS_WITHIN_S


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    """Checks the form of each line and, where systemd-analyze is installed, the name of each assignment."""
    known = re.compile(r"^(\[\w+\]|#.*|[A-Z]\w+=.+|)$")
    assert [] == [line for line in path.read_text().splitlines() if not known.match(line)]
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        return
    # The program and the user of the unit exist on the machine of a shop only.
    here = tmp_path / path.name
    text = path.read_text().replace("/srv/shop/.venv/bin/rq-core", sys.executable)
    here.write_text(re.sub("^User=.*\n", "", text, flags=re.MULTILINE))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(here)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert [] == ours
    here.write_text(text.replace("KillMode=", "KilMode=").replace("Restart=", "Restrat="))
    done = subprocess.run(
        [analyze, "verify", "--man=no", str(here)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Restrat" in done.stderr


def test_the_restart_interval_of_the_units_is_so_long_that_systemd_never_gives_up() -> None:
    """Checks that five starts take more than 10 s. By default, systemd gives up after five starts within 10 s."""
    for path in UNITS:
        assert unit(path)["Restart"] == "always"
        assert 5 * int(unit(path)["RestartSec"]) > 10


def test_the_labels_on_the_page_are_exactly_those_of_the_kubernetes_objects() -> None:
    objects = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    page = (DOCS / "how-to" / "deploy.md").read_text()
    applied = re.findall(r"^kubectl apply .* -l app=([\w-]+)$", page, re.MULTILINE)
    assert {each["metadata"]["labels"]["app"] for each in objects} == set(applied)
    assert ["audit", "audit", "worker"] == [
        container["args"][0]
        for name in applied
        for each in objects
        if each["metadata"]["name"] == name
        for container in each["spec"]["template"]["spec"]["containers"]
    ]
    for kind, name in re.findall(r"^kubectl .* (deployment|job)/([\w-]+)", page, re.MULTILINE):
        assert (kind, name) in {(it["kind"].lower(), it["metadata"]["name"]) for it in objects}


@pytest.mark.slow
def test_the_probes_of_the_worker_container_fail_unless_a_worker_runs(
    valkey: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    [(pod, container)] = [each for each in containers() if each[1]["args"][0] == "worker"]
    probes = [container[name] for name in ("startupProbe", "livenessProbe")]
    health = {tuple(probe["exec"]["command"]) for probe in probes}
    health.add(tuple(json.loads(lines_of_dockerfile()["HEALTHCHECK"].partition(" CMD ")[2])))
    [(name, *rest)] = health
    assert name == "rq-core"
    port = free_port()
    words = [word.replace("0.0.0.0:8080", f"127.0.0.1:{port}") for word in container["args"]]
    named = {each["name"]: each["containerPort"] for each in container["ports"]}
    probe = container["readinessProbe"]["httpGet"]
    assert named[probe["port"]] == 8080

    def status() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{probe['path']}", timeout=5) as it:
                return int(it.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    assert rq_core(*rest).returncode == 1
    variables = {"RQ_CORE_REDIS_URL": valkey.url}
    command = [sys.executable, "-m", "rq_core.cli", *words]
    with Child(command, tmp_path / "worker.log", variables, directory=EXAMPLES) as worker:
        wait_until(
            lambda: worker.poll() is not None or status() == 200, "the worker is ready", timeout=60
        )
        assert rq_core(*rest).returncode == 0
        worker.terminate()
        assert worker.wait(pod["terminationGracePeriodSeconds"]) == 0
    assert rq_core(*rest).returncode == 1


def test_the_page_includes_each_deploy_file_and_names_an_existing_metric() -> None:
    pages = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    for path in DEPLOY.iterdir():
        assert f'--8<-- "deploy/{path.name}"' in pages
    [named] = re.findall(r"`(rqc_\w+)`", (DOCS / "how-to" / "deploy.md").read_text())
    assert named in {metric.name for metric in FAMILIES}
