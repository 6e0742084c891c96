"""Opens one page of each kind in Chromium, light and dark, narrow and wide, and takes a screenshot of each.

Fails if a page logs an error, asks another host for anything, or is wider than the window. `scripts/site --look`
installs the browser, which Debian provides; Playwright only drives it.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import shutil
import sys
import threading
from pathlib import Path
from typing import Any, Final

from scripts.docs.site import ROOT

PAGES: Final = {
    "home": "",
    "tutorial": "tutorial/",
    "how-to": "how-to/tasks/",
    "reference": "reference/states/",
    "api": "reference/api/",
}
"""One page of each kind, by its address."""
WIDTHS: Final = (390, 1280)
SCHEMES: Final = ("light", "dark")
SHOTS: Final = ROOT / "build" / "look"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def look(site: Path) -> list[str]:
    """Take the screenshots of the built site, and return the problems as sentences."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium")
    if chromium is None:
        return ["chromium is not on PATH: run scripts/site --look"]
    handler = functools.partial(_Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}/"
    SHOTS.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    try:
        with sync_playwright() as driver:
            browser: Any = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for name, width, scheme in itertools.product(PAGES, WIDTHS, SCHEMES):
                view = f"{name}-{width}-{scheme}"
                page = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=scheme
                )
                wrong += [f"{view}: {each}" for each in _visit(page, base, PAGES[name])]
                page.screenshot(path=SHOTS / f"{view}.png")
                page.close()
            browser.close()
    finally:
        server.shutdown()
        server.server_close()
    return wrong


def _visit(page: Any, base: str, address: str) -> list[str]:
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            None
            if asked.url.startswith((base, "data:", "blob:"))
            else wrong.append(f"asks {asked.url}")
        ),
    )
    page.goto(base + address, wait_until="networkidle")
    over = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    if over > 0:
        wrong.append(f"is {over} pixels wider than the window")
    return wrong


def main() -> int:
    """Take the screenshots of all pages. Returns the exit status."""
    wrong = look(ROOT / "build" / "site")
    for each in wrong:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"{len(PAGES) * len(WIDTHS) * len(SCHEMES)} screenshots in {SHOTS}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
