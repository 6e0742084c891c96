"""An engineer on call works with the page alone: finds jobs that died of one error, and reads a traceback.

The engineer requeues the jobs of one customer, copies the jobs of another customer, and sees both changes in the log.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from rq_core.protocol.calls import claims
from rq_core.web.tokens import OPERATOR, add_token
from tests.kit.browser import WAIT_MS, Viewer
from tests.kit.mirroring import mirroring
from tests.kit.servers import free_port
from tests.web.browser.conftest import Site
from tests.web.browser.test_changing_many import login, server
from tests.web.conftest import QUEUE

MANY: Final = 300
"""Number of jobs that die of the error. Each of three customers has a third of these jobs."""
ERROR: Final = "ProviderTimeout"
WHY: Final = "the provider is back"
TRACEBACK: Final = 'File "mail/provider.py", line 42, in send\n    raise ProviderTimeout(30)'


def die(site: Site, count: int, error: str) -> None:
    """Let jobs of three customers die of the same error."""
    seed = site.scene.seed
    jobs = (
        seed.job(
            f"{error}-{number}",
            task="send",
            scopes=[f"customer={('acme', 'umbrella', 'initech')[number % 3]}"],
            spec_max=1_000,
        )
        for number in range(count)
    )
    seed.enqueue(*jobs)
    said = json.dumps({"type": error, "message": "after 30 s", "traceback": TRACEBACK})
    while held := [each for each in seed.claim(250).jobs if each.id.startswith(error)]:
        failed = [(each.id, each.fence, "final", 0, "gave_up", said) for each in held]
        seed.client.run(claims.fail(QUEUE, "w-1", failed))


def test_an_engineer_on_call_requeues_and_copies_dead_jobs(
    browser: Any, site: Site, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    die(site, MANY, ERROR)
    die(site, 9, "AddressInvalid")
    site.scene.mirror()
    (tmp_path / "tokens").touch()
    token = add_token(tmp_path / "tokens", "ann", role=OPERATOR, see_arguments=True)
    url = f"http://127.0.0.1:{free_port()}"
    viewer = Viewer(browser, url)
    page = viewer.page
    of_acme = MANY // 3

    try:
        with server(site, url, tmp_path), mirroring(site.scene.url, site.scene.audit_url):
            login(page, url, token)
            # What died: the page of dead jobs counts deaths by error.
            page.locator("#menu").get_by_role("link", name="Dead").click()
            row = page.locator("main tr", has_text=ERROR).first
            expect(row).to_contain_text(f"{MANY:,}", timeout=WAIT_MS)

            # Those of the last hour, and the traceback of one of them.
            page.locator("#menu").get_by_role("link", name="Jobs").click()
            page.locator("#search-q").fill(f"queue:{QUEUE} error:{ERROR} since:1h")
            page.get_by_role("button", name="search").click()
            expect(page.locator("main a[data-row]").first).to_contain_text(ERROR, timeout=WAIT_MS)
            found = page.url
            page.locator("main a[data-row]").first.click()
            expect(page.locator("main pre")).to_contain_text(
                "raise ProviderTimeout", timeout=WAIT_MS
            )

            # All of them, and then those of one customer.
            page.goto(found)
            page.get_by_role("link", name="requeue these").click()
            expect(page.locator(".count")).to_contain_text(f"{MANY:,} jobs match", timeout=WAIT_MS)
            box = page.locator("#search-q")
            box.fill(f"{box.input_value()} scope:customer=acme")
            page.get_by_role("button", name="count").click()
            expect(page.locator(".count")).to_contain_text(
                f"{of_acme:,} jobs match", timeout=WAIT_MS
            )
            page.locator("#many-number").fill(str(of_acme))
            page.locator("#many-reason").fill(WHY)
            page.get_by_role("button", name="requeue", exact=True).click()
            done = f"{of_acme:,} of {of_acme:,} requeued"
            expect(page.locator(".did")).to_contain_text(done, timeout=4 * WAIT_MS)

            # Who did it, from the log.
            page.get_by_role("link", name=f"the log of {QUEUE}").click()
            told = page.locator("main tbody tr", has_text="requeued").first
            expect(told).to_contain_text(WHY, timeout=WAIT_MS)
            expect(told).to_contain_text("ann", timeout=WAIT_MS)
            assert not viewer.findings()

            # Copies of those of another customer.
            page.goto(
                f"{url}/bulk?verb=copy&where=queue:{QUEUE} error:{ERROR} scope:customer=umbrella"
            )
            expect(page.locator(".count")).to_contain_text(
                f"{of_acme:,} jobs to copy", timeout=WAIT_MS
            )
            assert not viewer.findings()
            page.locator("#many-number").fill(str(of_acme))
            page.locator("#many-reason").fill(WHY)
            page.get_by_role("button", name="copy", exact=True).click()
            done = f"{of_acme:,} of {of_acme:,} copied"
            expect(page.locator(".did")).to_contain_text(done, timeout=4 * WAIT_MS)
            expect(page.locator(".empty")).to_contain_text("copied before", timeout=WAIT_MS)
    finally:
        viewer.close()

    assert not viewer.wrong, "\n".join(viewer.wrong)
    entries = site.scene.seed.client.run(site.scene.seed.client.calls.reads.dead(QUEUE, 10 * MANY))
    left = [each.id for each in entries.jobs if each.id.startswith(ERROR)]
    assert len(left) == MANY - of_acme
    assert all(int(re.sub(r"\D", "", each)) % 3 for each in left)
