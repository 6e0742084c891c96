"""`rq-core worker --reload`. After a file has changed, the worker gives its jobs back and loads the new code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rq_core.app.app import App
from rq_core.errors import InvalidOption
from rq_core.process.supervisor import LOOK_EVERY_S, SourceFiles
from rq_core.process.worker_process import ServeOptions
from rq_core.worker import WorkerOptions
from tests.kit.processes import ROOT, Child
from tests.kit.wait import wait_until
from tests.worker.conftest import event_types

PROGRAM = """\
import asyncio, os
from rq_core import App
app = App()
@app.task(queue="reloaded")
async def note() -> None:
    with open(os.environ["NOTES"], "a") as notes: notes.write("{says}\\n")
    await asyncio.sleep({seconds})
"""


class Project:
    """A directory with a module of tasks, and with the lines that its tasks write."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.module = directory / "tasks_that_change.py"
        self.notes = directory / "notes"

    def write(self, says: str, *, seconds: float = 0) -> None:
        self.module.write_text(PROGRAM.format(says=says, seconds=seconds))

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.fixture
def process(
    project: Project, valkey_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Child]:
    """Start a worker with the option --reload in the directory of the project."""
    project.write("first", seconds=60)
    words = ["-q", "reloaded", "--reload", "--grace", "0.1", "--redis", valkey_url]
    command = [sys.executable, "-m", "rq_core.cli", "worker", "tasks_that_change", *words]
    variables = {"NOTES": str(project.notes), "PYTHONPATH": str(ROOT)}
    log = tmp_path_factory.mktemp("log") / "worker.log"
    with Child(command, log, variables, directory=project.directory) as made:
        yield made


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    with App(valkey_url) as made:
        yield made


@pytest.mark.slow
def test_a_worker_that_restarts_for_a_changed_file_gives_its_job_back(
    project: Project, process: Child, app: App
) -> None:
    job = app.enqueue("reloaded", "note")
    wait_until(lambda: project.noted() == ["first"], "the old code runs", timeout=20)

    project.write("second one")
    wait_until(lambda: project.noted()[1:] == ["second", "one"], "the new code runs", timeout=20)
    wait_until(lambda: job.state() == "gone", "the job has ended", timeout=20)

    assert event_types(app.client, job.id, "reloaded") == [
        "enqueued", "claimed", "rolled_back", "claimed", "succeeded",
    ]  # fmt: skip
    assert "tasks_that_change.py changed, restarting the worker" in process.said()
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


@pytest.mark.slow
def test_a_syntax_error_is_reported_and_the_next_change_restarts_the_worker(
    project: Project, process: Child, app: App
) -> None:
    app.enqueue("reloaded", "note")
    wait_until(lambda: project.noted() == ["first"], "the old code runs", timeout=20)

    project.module.write_text("this is no Python")
    process.wait_said("SyntaxError", timeout=20)
    process.wait_said("waits for the next change of a file", timeout=20)
    looks = process.said().count("SyntaxError")
    project.module.with_name("other.py").write_text("")
    wait_until(
        lambda: process.said().count("waits for the next change") == 2,
        "it was tried again",
        timeout=20,
    )
    project.write("mended")

    wait_until(lambda: project.noted() == ["first", "mended"], "the new code runs", timeout=20)
    # Once for each change: not again and again.
    assert process.said().count("SyntaxError") == 2 * looks


@pytest.mark.parametrize(
    "given", [{"processes": 2}, {"worker": WorkerOptions(burst=True)}], ids=["processes", "burst"]
)
def test_reload_is_refused_with_processes_and_with_burst(given: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="leave out --processes and --burst"):
        ServeOptions(target="tasks", reload=True, **given)  # type: ignore[arg-type]


def test_reload_notices_only_changes_of_python_files(tmp_path: Path) -> None:
    time = 0.0
    for name in ("env/pyvenv.cfg", "env/lib.py", ".git/x.py", "pkg/a.py", "pkg/__pycache__/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("1")
    files = SourceFiles(tmp_path, clock=lambda: time)

    def changed() -> Path | None:
        nonlocal time
        time += LOOK_EVERY_S
        return files.changed()

    assert changed() is None
    for name in ("env/lib.py", ".git/x.py", "pkg/__pycache__/a.py", "notes.txt"):
        (tmp_path / name).write_text("22")
    assert changed() is None
    (tmp_path / "pkg/a.py").write_text("22")
    assert files.changed() is None, "it is too early"
    assert changed() == tmp_path / "pkg/a.py"
    assert changed() is None
    os.utime(tmp_path / "pkg/a.py", ns=(1, 1))
    assert changed() == tmp_path / "pkg/a.py"
    (tmp_path / "pkg/b.py").write_text("1")
    assert changed() == tmp_path / "pkg/b.py"
    (tmp_path / "pkg/a.py").unlink()
    assert changed() == tmp_path / "pkg/a.py"
