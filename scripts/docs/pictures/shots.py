"""Takes screenshots of the web page, light and dark, with Chromium: example queues on an embedded server, and a worker.

scripts/site --shots      writes docs/pictures/web-page.png and web-page-dark.png
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from scripts.docs.site import ROOT

TARGETS: Final = {"light": "web-page.png", "dark": "web-page-dark.png"}
"""The files in ``docs/pictures``, by the colour scheme of the page."""
SIZE: Final = {"width": 1200, "height": 640}
RUNS_S: Final = 150
"""The time (s) for which the worker runs before the pictures are taken. Two minutes of the last hour then have bars."""
_LISTEN: Final = "127.0.0.1:8917"
_APP: Final = """
import random
import sys
import time

from rq_core import App, Cap, RetryPolicy

app = App()


@app.task(queue="mail", caps=[Cap(3)])
def send(to: int) -> None:
    time.sleep(0.4)
    if random.random() < 0.004:
        raise ConnectionError("the mail server does not answer")


@app.task(queue="billing", retry=RetryPolicy(max_attempts=1))
def invoice(order: int) -> None:
    time.sleep(0.2)
    if random.random() < 0.02:
        raise ConnectionError("the bank does not answer")


@app.task(queue="thumbnails")
def shrink(picture: int) -> None:
    time.sleep(0.1)


@app.task(queue="reports")
def report(day: int) -> None: ...


@app.task(queue="search-index")
def index(page: int) -> None: ...


if __name__ == "__main__":
    report.with_options(delay=3600).enqueue(99)
    for number in range(40):
        report.enqueue(number)
    for number in range(12):
        index.enqueue(number)
    send.with_options(delay=3600).enqueue(1)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        # More mail than its cap of 3 lets through.
        for task, many in ((send, 9), (invoice, 5), (shrink, 20)):
            for number in range(many):
                task.enqueue(number)
        time.sleep(1)
"""


def main() -> int:
    """Write the screenshots. Return the exit status."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("chromium is not on PATH: run scripts/site --shots\n")
        return 1
    with tempfile.TemporaryDirectory() as name, _page(Path(name)):
        time.sleep(RUNS_S)
        _shoot(chromium)
    return 0


@contextmanager
def _page(directory: Path) -> Iterator[None]:
    """Run a producer, a worker and the web page during the block. Their files are in ``directory``."""
    (directory / "example.py").write_text(_APP)
    here = Path(sys.executable).parent
    env = os.environ | {
        "RQ_CORE_REDIS_URL": "embedded://",
        "RQ_CORE_AUDIT_URL": "sqlite:///audit.db",
        "PYTHONPATH": str(directory),
    }
    audit = ["--audit", "sqlite:///audit.db"]
    queues = ["--queues", "billing,mail,thumbnails", "--concurrency", "12"]
    commands = (
        [str(here / "rq-core"), "worker", "example", *queues, *audit],
        [sys.executable, "example.py", str(RUNS_S + 30)],
        [str(here / "rq-core"), "web", "--listen", _LISTEN, *audit],
    )
    started = []
    try:
        for command in commands:
            started.append(subprocess.Popen(command, cwd=directory, env=env))
            time.sleep(3)
        yield
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)
        stop = [str(here / "rq-core"), "server", "stop"]
        subprocess.run(stop, cwd=directory, env=env, check=False, timeout=60)


def _shoot(chromium: str) -> None:
    from playwright.sync_api import sync_playwright

    address = f"http://{_LISTEN}/"
    with urllib.request.urlopen(address, timeout=10) as answer:
        answer.read()
    with sync_playwright() as driver:
        browser: Any = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme, name in TARGETS.items():
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(address, wait_until="load")
            page.wait_for_timeout(500)
            page.screenshot(path=ROOT / "docs" / "pictures" / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    sys.exit(main())
