"""Opens one page of each kind in Chromium, light and dark, narrow and wide, and takes a screenshot of each.

It fails if a page logs an error, loads something from another host, or is wider than the window. It fails if a page
breaks code in a table, or if a drawing keeps its light colours. It also fails if a search of SEARCHES does not find its
page.

`scripts/site --look` installs Debian's Chromium; Playwright only drives it.
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
    "settings": "reference/settings/",
    "names": "how-to/names/",
    "watch": "how-to/watch/",
    "web-page": "how-to/dashboard/",
    "why": "why/",
    "compare": "compare/",
    "performance": "performance/",
}
"""One page of each kind, by the address of the page."""
SEARCHES: Final = {
    "periodic": "how-to/schedules/",
    "beat": "how-to/schedules/",
    "cron": "how-to/schedules/",
    "recurring": "how-to/schedules/",
    "dead letter queue": "how-to/tasks/",
    "DLQ": "how-to/tasks/",
    "outbox": "why/",
    "transactional outbox": "how-to/inbox/",
    "rate limit": "how-to/caps/",
    "concurrency": "how-to/caps/",
    "deduplication": "glossary/",
    "visibility timeout": "glossary/",
    "countdown": "glossary/",
    "monitoring": "how-to/watch/",
    "flower": "how-to/dashboard/",
    "web ui": "how-to/dashboard/",
    "workflow": "how-to/flows/",
}
"""The page that the search must show among its first three results, by the search text."""
WIDTHS: Final = (390, 1440)
SCHEMES: Final = ("light", "dark")
SHOTS: Final = ROOT / "build" / "look"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def look(site: Path) -> list[str]:
    """Take screenshots of the built site. Return a sentence for each problem."""
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
            wrong += _drawings_that_keep_their_colours(browser, base)
            wrong += _searches_without_their_page(browser, base)
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
    broken = page.evaluate(_BROKEN_CODE)
    if broken:
        wrong.append(f"a table breaks {broken}")
    return wrong


_BROKEN_CODE: Final = """() => [...document.querySelectorAll("td code, th code")]
    .filter((code) => code.getClientRects().length > 1)
    .map((code) => code.textContent)"""
"""JavaScript that returns the code in tables which is broken over several lines."""


def _drawings_that_keep_their_colours(browser: Any, base: str) -> list[str]:
    """Switch a page to dark colours, and return a sentence if its first drawing looks the same as before."""
    page = browser.new_page(viewport={"width": 1440, "height": 900}, color_scheme="light")
    page.goto(f"{base}why/", wait_until="networkidle")
    box = page.locator("img.drawing").first.bounding_box()
    # Without its round corners, where the page shows.
    inside = {name: box[name] + 20 for name in "xy"} | {
        name: box[name] - 40 for name in ("width", "height")
    }
    before = page.screenshot(clip=inside)
    page.locator("label[for=__palette_1]").first.click()
    page.wait_for_timeout(500)
    after = page.screenshot(clip=inside)
    page.close()
    return ["why: a drawing keeps its light colours on a dark page"] if before == after else []


def _searches_without_their_page(browser: Any, base: str) -> list[str]:
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(base, wait_until="networkidle")
    page.keyboard.press("Control+k")
    wrong = []
    for words, wanted in SEARCHES.items():
        page.keyboard.press("Control+a")
        page.keyboard.type(words)
        found = page.locator(f'a[href*="?h={words.replace(" ", "+")}"]')
        found.first.wait_for()
        # The results come in steps.
        page.wait_for_timeout(500)
        first = found.evaluate_all("links => links.slice(0, 3).map((link) => link.href)")
        if not any(each.removeprefix(base).startswith(f"{wanted}?") for each in first):
            wrong.append(f"the search for {words!r} does not show {wanted}, but {first}")
    page.close()
    return wrong


def main() -> int:
    """Take screenshots of all pages. Return the exit status."""
    wrong = look(ROOT / "build" / "site")
    for each in wrong:
        sys.stderr.write(f"{each}\n")
    sys.stdout.write(f"{len(PAGES) * len(WIDTHS) * len(SCHEMES)} screenshots in {SHOTS}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
