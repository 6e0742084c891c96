"""An operator changes many jobs in the browser. The page's server is killed half-way, and the operator continues."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rq_core.web.tokens import OPERATOR, add_token
from tests.kit.browser import WAIT_MS, Viewer, listening
from tests.kit.processes import Child
from tests.kit.servers import free_port
from tests.web.browser.conftest import Site
from tests.web.conftest import QUEUE

MANY = 12_000
WHERE = f"queue:{QUEUE} task:bulky state:ready"
WHY = "closed account"


@contextmanager
def server(site: Site, url: str, place: Path) -> Iterator[Child]:
    """Serve the page, with tokens, at this URL during the block. The block may kill the process."""
    command = [
        sys.executable, "-m", "rq_core.cli", "web", "--listen", url.removeprefix("http://"),
        "--redis", site.scene.url, "--audit", site.scene.audit_url, "--tokens", str(place / "tokens"),
    ]  # fmt: skip
    with Child(command, place / "log", shared=True) as process:
        listening(url, process)
        yield process


def login(page: Any, url: str, token: str) -> None:
    page.goto(f"{url}/login")
    page.locator("input[name=token]").fill(token)
    page.get_by_role("button", name="look").click()
    page.wait_for_url(f"{url}/")


def cancelled_by_job(site: Site) -> dict[str, int]:
    """Return the number of events `cancelled` in the outbox, by job id."""
    found: dict[str, int] = {}
    for entry in site.scene.seed.entries():
        for event in entry.jobs if entry.event == "cancelled" else ():
            found[event.job_id] = found.get(event.job_id, 0) + 1
    return found


def test_a_change_of_12000_jobs_continues_after_the_web_server_was_killed_half_way(
    browser: Any, site: Site, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    seed = site.scene.seed
    seed.enqueue(*(seed.job(f"bulky-{number}", task="bulky") for number in range(MANY)))
    (tmp_path / "tokens").touch()
    token = add_token(tmp_path / "tokens", "ann", role=OPERATOR)
    url = f"http://127.0.0.1:{free_port()}"
    viewer = Viewer(browser, url)
    page = viewer.page
    try:
        with server(site, url, tmp_path) as first:
            login(page, url, token)
            page.goto(f"{url}/bulk?verb=cancel&where={WHERE}")
            while page.get_by_role("link", name="count on").count():
                page.get_by_role("link", name="count on").click()
            expect(page.locator(".count")).to_contain_text("12,000 jobs match", timeout=WAIT_MS)
            page.locator("#many-number").fill("12,000")
            page.locator("#many-reason").fill(WHY)
            sent = 0

            def kill_at_the_third_call(route: Any) -> None:
                nonlocal sent
                sent += route.request.method == "POST"
                if sent == 3 and first.poll() is None:
                    first.kill()
                route.continue_()

            page.route("**/*", kill_at_the_third_call)
            page.get_by_role("button", name="cancel", exact=True).click()
            expect(page.locator("[data-says]")).to_contain_text("It stopped", timeout=WAIT_MS)
        begun = len(cancelled_by_job(site))
        assert 0 < begun < MANY
        stopped_at = page.url
        assert "at=" in stopped_at

        with server(site, url, tmp_path):
            # A server that was started again knows no cookie of before.
            login(page, url, token)
            page.goto(stopped_at)
            expect(page.locator(".count")).to_contain_text(
                "of 12,000 jobs are changed", timeout=WAIT_MS
            )
            page.locator("#many-number").fill("12000")
            page.get_by_role("button", name="cancel on").click()
            expect(page.locator(".did")).to_contain_text(
                "the log has it as bulk", timeout=4 * WAIT_MS
            )
    finally:
        viewer.close()

    assert cancelled_by_job(site) == {f"bulky-{number}": 1 for number in range(MANY)}
    bulks = {
        entry.why
        for entry in seed.entries()
        for event in entry.jobs
        if entry.event == "cancelled" and event.job_id.startswith("bulky")
    }
    assert len(bulks) == 1
    assert re.fullmatch(f"bulk [0-9a-f]{{16}}: {WHY}", bulks.pop())
