"""Fixtures: the served page, and Chromium. Each file of tests starts both once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.kit.browser import Viewer, chromium, served, viewing
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, engines
from tests.web.conftest import QUEUE, Scene, lay_log, make_busy

View = Callable[..., AbstractContextManager[Viewer]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/web/browser/"):
            item.add_marker(pytest.mark.browser)


@dataclass
class Site:
    """A served page: its URL, and the server with the queue that it shows."""

    url: str
    scene: Scene


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Serve the page of a busy queue that has a log."""
    place = tmp_path_factory.mktemp("site")
    server = RedisServer(engines()[0], place).start()
    audit_url = f"sqlite:///{place / 'audit.db'}"
    lay_log(audit_url)
    try:
        with Seed(server.url, QUEUE, real_clock=True) as seed:
            scene = Scene(seed, audit_url)
            make_busy(scene)
            with served(server.url, audit_url, place / "log") as url:
                yield Site(url, scene)
    finally:
        server.stop()


@pytest.fixture
def view(browser: Any, site: Site) -> View:
    """Return a function that opens a browser window. Examples: ``view()``, ``view(scripts=False)``,
    ``view(width=390)``."""

    def opened(**options: Any) -> AbstractContextManager[Viewer]:
        return viewing(browser, site.url, **options)

    return opened
