"""Debian's Chromium, driven by Playwright, and the checks of a page that Chromium shows.

Playwright's driver is a Node process. `.ci/run` installs the driver and the browser. Tests that need them have the mark
`browser`.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from tests.kit import leaks
from tests.kit.processes import ROOT, Child
from tests.kit.reaper import reaper
from tests.kit.servers import free_port
from tests.kit.wait import wait_until

AXE: Final = ROOT / "tests" / "web" / "browser" / "axe" / "axe-4.14.1.min.js"
AXE_DIGEST: Final = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
"""The digest of axe.min.js in the package axe-core 4.14.1."""
SCHEMES: Final = ("light", "dark")
WIDTHS: Final = (390, 1280)
HEIGHT: Final = 900
WAIT_MS: Final = 15_000
"""The time (ms) that Playwright waits for an expected condition, even on a busy machine."""
_JUDGE: Final = """async () => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  const say = (each) => each.nodes.slice(0, 3).map((node) => node.target.join(" ") + ": " + node.any.concat(node.all, node.none).map((why) => why.message).join("; "));
  return found.violations.map((each) => each.id + " (" + each.impact + ", " + each.nodes.length + ") " + say(each).join(" | "));
}"""  # noqa: E501 - a script
_WIDER: Final = """() => {
  const over = document.documentElement.scrollWidth - window.innerWidth;
  if (over <= 0) return [];
  const last = [...document.querySelectorAll("body *")].filter((each) => each.getBoundingClientRect().right > window.innerWidth + 1);
  return [`the page is ${over} px wider than the window: ` + last.slice(0, 3).map((each) => each.outerHTML.slice(0, 120)).join(" | ")];
}"""  # noqa: E501 - a script

_SEEN: Final = """() => {
  const names = ["h1", "h2", "p", "li", "td", "th", "dd", "dt", "summary", "div.unread"];
  return [...document.querySelectorAll(names.map((each) => "main " + each).join(","))]
    .filter((each) => { const at = each.getBoundingClientRect(); return at.height && at.bottom <= window.innerHeight; })
    .map((each) => each.innerText).join("\\n");
}"""


@functools.cache
def axe() -> str:
    """Return the source of axe-core. Raises AssertionError if the file differs from the released axe.min.js."""
    found = AXE.read_bytes()
    assert hashlib.sha256(found).hexdigest() == AXE_DIGEST
    return found.decode()


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Yield a new browser, which ends after the block.

    The browser's driver does not count as a leak. If the test run is killed, the reaper kills the driver and thus the
    browser.
    """
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    assert program is not None, "chromium is not on PATH: it comes from Debian"
    before = leaks.children()
    with sync_playwright() as driver:
        drivers = leaks.children().keys() - before.keys()
        for pid in drivers:
            reaper().watch(pid)
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        own = [each for pid in drivers for each in psutil.Process(pid).children(recursive=True)]
        try:
            yield browser
        finally:
            browser.close()
    for pid in drivers:
        reaper().release(pid)
    assert own, "the browser is a child of the driver"
    wait_until(
        lambda: not any(each.is_running() for each in own),
        lambda: f"the browser ends; left: {[each for each in own if each.is_running()]}",
    )


@contextlib.contextmanager
def served(redis_url: str, audit_url: str | None, log: Path, *options: str) -> Iterator[str]:
    """Run `rq-core web`, and yield the address of the page. The output of the process goes to the file ``log``."""
    url = f"http://127.0.0.1:{free_port()}"
    audit = ["--audit", audit_url] if audit_url else []
    command = [
        sys.executable, "-m", "rq_core.cli", "web", "--listen", url.removeprefix("http://"), "--redis", redis_url,
        *audit, *options,
    ]  # fmt: skip
    with Child(command, log, shared=True) as process:
        listening(url, process)
        yield url
        process.terminate()
        process.wait(20)


def listening(url: str, process: Child) -> None:
    """Wait until the web server of the page answers."""
    wait_until(lambda: _answers(url), lambda: f"the page answers; {process.said()}", timeout=60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/static/icon.svg", timeout=5):  # noqa: S310 - our own
            return True
    except OSError:
        return False


class Viewer:
    """A window of the browser. It collects problems: exceptions, errors, warnings, and requests to other hosts."""

    def __init__(self, browser: Any, base: str, *, scripts: bool = True, width: int = 1280) -> None:
        self.base = base
        self.wrong: list[str] = []
        self._context = browser.new_context(
            java_script_enabled=scripts, viewport={"width": width, "height": HEIGHT},
            timezone_id="Europe/Vienna", locale="en-GB",
        )  # fmt: skip
        self._context.set_default_timeout(WAIT_MS)
        self.page = self._context.new_page()
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.wrong.append(f"an exception: {error}"))
        self.page.on("request", self._asked)

    def _said(self, said: Any) -> None:
        # A page that is left while it looks again says so, too. An answer that is missing has other words as well.
        left = "htmx:error: Failed to fetch" in said.text or "AbortError" in said.text
        if said.type in ("error", "warning") and not left:
            self.wrong.append(f"the console: {said.text}")

    def _asked(self, asked: Any) -> None:
        if not asked.url.startswith((self.base, "data:", "blob:")):
            self.wrong.append(f"it asks {asked.url}")

    def go(self, path: str) -> Any:
        """Open the page at this path."""
        answer = self.page.goto(self.base + path)
        assert answer.status < 400, f"{path}: {answer.status}"
        return self.page

    def show(self, scheme: str, width: int) -> None:
        """Show the same page in another colour scheme, and in a window of this width (pixels)."""
        self.page.emulate_media(color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": HEIGHT})

    def findings(self) -> list[str]:
        """Return the errors that axe finds on the page. A page that is wider than the window is an error, too."""
        if not self.page.evaluate("() => 'axe' in window"):
            # The page's policy allows no such script; the driver's own way in does.
            self.page.evaluate(axe())
        return [*self.page.evaluate(_JUDGE), *self.page.evaluate(_WIDER)]

    def first_screen(self) -> str:
        """Return the text that is visible without scrolling."""
        return str(self.page.evaluate(_SEEN))

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save a picture of the first screen, or of the whole page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path, full_page=whole)

    def close(self) -> None:
        """Close the window."""
        self._context.close()


@contextlib.contextmanager
def viewing(browser: Any, base: str, **options: Any) -> Iterator[Viewer]:
    """Yield a new window, and assert after the block that it had no problems."""
    viewer = Viewer(browser, base, **options)
    try:
        yield viewer
        assert not viewer.wrong, "\n".join(viewer.wrong)
    finally:
        viewer.close()
