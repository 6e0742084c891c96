"""The page as `rq-core web` serves it, and Chromium to look at it. Each file of tests starts both once."""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.browser import Viewer, chromium, viewing
from tests.kit.processes import Child
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, engines, free_port
from tests.kit.wait import wait_until
from tests.web.conftest import QUEUE, Scene, lay_log, make_busy

View = Callable[..., AbstractContextManager[Viewer]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/web/browser/" in item.nodeid:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@dataclass
class Site:
    """A page that is served, and what it shows."""

    url: str
    scene: Scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A busy queue with a log, and its page."""
    place = tmp_path_factory.mktemp("site")
    server = RedisServer(engines()[0], place).start()
    audit_url = f"sqlite:///{place / 'audit.db'}"
    lay_log(audit_url)
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "rq_core.cli", "web", "--listen", url.removeprefix("http://"),
        "--redis", server.url, "--audit", audit_url,
    ]  # fmt: skip
    try:
        with Seed(server.url, QUEUE, real_clock=True) as seed:
            scene = Scene(seed, audit_url)
            make_busy(scene)
            with Child(command, place / "log", shared=True) as process:
                wait_until(lambda: _answers(url), "the page answers", timeout=60)
                yield Site(url, scene)
                process.terminate()
                process.wait(20)
    finally:
        server.stop()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/static/icon.svg", timeout=5):
            return True
    except OSError:
        return False


@pytest.fixture
def view(browser: Any, site: Site) -> View:
    """Open a window: ``view()``, ``view(scripts=False)``, ``view(width=390)``."""

    def opened(**options: Any) -> AbstractContextManager[Viewer]:
        return viewing(browser, site.url, **options)

    return opened
