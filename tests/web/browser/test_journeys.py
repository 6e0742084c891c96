"""Journeys of a viewer: from an alert to its cause, by keyboard, without JavaScript, and while the page updates."""

from __future__ import annotations

import itertools
import json
from typing import Any

from tests.kit.browser import SCHEMES, WAIT_MS, WIDTHS, served, viewing
from tests.web.browser.conftest import Site, View
from tests.web.conftest import QUEUE


def waits_text(page: Any, selector: str, text: str) -> None:
    """Wait until an element contains this text."""
    from playwright.sync_api import expect

    expect(page.locator(selector).first).to_contain_text(text, timeout=WAIT_MS)


def focused(page: Any) -> str:
    """Return the text of the element that has the focus."""
    return str(page.evaluate("() => document.activeElement.textContent.trim()"))


def test_a_viewer_follows_links_from_an_alert_to_the_first_event_of_its_cause(
    view: View,
) -> None:
    with view() as viewer:
        page = viewer.go("/")
        cause = page.locator(".causes li", has_text="the cap of tenant is full")
        cause.get_by_text("what to do").click()
        assert cause.locator(".todo").is_visible()
        cause.get_by_role("link", name="look").click()
        page.wait_for_url("**/queues/mail#limits")
        assert page.locator("#limits").get_by_text("tenant=acme").is_visible()

        page.locator(".strip div", has_text="ready").locator("a").first.click()
        page.locator("main a[data-row]", has_text="waits").click()
        page.wait_for_url(f"**/jobs/{QUEUE}/waits")
        why = page.locator("section", has_text="Why it does not run now")
        assert "tenant=acme" in why.inner_text()
        assert why.get_by_role("link", name="holds").is_visible()

        waited = page.locator("section", has_text="What it waited for")
        waited.get_by_role("link").first.click()
        page.wait_for_url("**/at?t=*")
        stood = page.locator("main")
        assert stood.locator("tr", has_text="holds").locator(".s-running").is_visible()
        assert stood.locator("tr", has_text="waits").locator(".s-ready").is_visible()


def test_keys_move_the_focus_between_jobs_and_into_the_search(view: View) -> None:
    with view() as viewer:
        page = viewer.go(f"/jobs?queue={QUEUE}")
        ids = page.locator("main a[data-row]").all_inner_texts()
        page.keyboard.press("j")
        assert focused(page) == ids[0]
        page.keyboard.press("j")
        page.keyboard.press("j")
        page.keyboard.press("k")
        assert focused(page) == ids[1]
        page.keyboard.press("/")
        page.keyboard.type("waits")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/jobs/{QUEUE}/waits")
        waits_text(page, "h1", "waits")


def test_a_viewer_can_look_at_causes_queues_jobs_and_moments_without_javascript(view: View) -> None:
    with view(scripts=False) as viewer:
        page = viewer.go("/")
        page.locator(".causes summary").first.click()
        assert page.locator(".causes .todo").first.is_visible()
        page.locator("main").get_by_role("link", name=QUEUE, exact=True).last.click()
        page.wait_for_url(f"**/queues/{QUEUE}")
        page.locator("#menu").get_by_role("link", name="Jobs").click()
        page.locator("#search-q").fill("waits")
        page.get_by_role("button", name="search").click()
        page.wait_for_url(f"**/jobs/{QUEUE}/waits")
        assert "waits for" in page.locator(".why").inner_text()
        page.locator("#menu").get_by_role("link", name="Then").click()
        page.locator("#search-t").fill("1h ago")
        page.get_by_role("button", name="show").click()
        assert "begins at" in page.locator("main").inner_text()


def test_an_update_keeps_the_focus_a_ticked_box_and_typed_text(site: Site, view: View) -> None:
    """Checks checkboxes that the test itself adds to the list of jobs. Today's list has none."""

    def with_boxes(route: Any) -> None:
        answer = route.fetch()
        box = '<th scope="row" class="id"><input type="checkbox" name="id" aria-label="choose">'
        boxes = answer.text().replace('<th scope="row" class="id">', box)
        route.fulfill(response=answer, body=boxes)

    with view() as viewer:
        path = f"/jobs?queue={QUEUE}&state=ready"
        viewer.page.route("**/jobs?*", with_boxes)
        page = viewer.go(path)
        count = "main a.chip:has-text('ready') small"
        before = int(page.locator(count).inner_text())
        page.locator("#search-q").fill("half an i")
        page.locator("tr", has_text="later").get_by_role("checkbox").check()
        page.locator("tr", has_text="later").get_by_role("link").first.focus()
        site.scene.seed.enqueue("new")
        waits_text(page, count, str(before + 1))
        assert page.locator("tr", has_text="new").count() == 1
        ticked = [each.is_checked() for each in page.locator("tbody").get_by_role("checkbox").all()]
        assert page.locator("tr", has_text="later").get_by_role("checkbox").is_checked()
        assert ticked.count(True) == 1
        assert focused(page) == "later"
        assert page.locator("#search-q").input_value() == "half an i"


def test_an_opened_section_stays_open_after_an_update(site: Site, view: View) -> None:
    with view() as viewer:
        page = viewer.go("/")
        # By its text: a new cause, such as a mirror that is late on a busy machine, may come before this one.
        cause = page.locator(".causes li", has_text="the cap of tenant is full")
        cause.locator("summary").click()
        site.scene.seed.enqueue("newer")
        site.scene.die("dies")
        waits_text(page, ".strip div:has-text('dead') dd", "2")
        assert cause.locator(".todo").is_visible()


def test_times_are_in_the_time_zone_of_the_reader_even_after_an_update(
    site: Site, view: View
) -> None:
    with view() as viewer, view(scripts=False) as plain:
        page = viewer.go("/log")
        utc = plain.go("/log").locator("td time").first
        assert utc.inner_text() in (utc.get_attribute("title") or "")
        first = page.locator("td time").first
        local, title = first.inner_text(), first.get_attribute("title")
        assert local not in title
        assert local[-6:] == title.removesuffix(" UTC")[-6:] or local[14:16] == title[14:16]
        site.scene.seed.enqueue("newest")
        site.scene.mirror()
        waits_text(page, "tbody tr", "newest")
        assert first.inner_text() not in (first.get_attribute("title") or "")


def test_a_form_shows_and_submits_a_moment_in_the_time_zone_of_the_reader(
    view: View,
) -> None:
    with view() as viewer:
        page = viewer.go("/at?t=2026-01-15 12:03")
        assert page.locator("#search-t").input_value() == "2026-01-15 13:03:00.000+01:00"
        page.get_by_role("button", name="show").click()
        page.wait_for_url("**/at?t=2026-01-15*01*")
        assert page.locator("h1 time").get_attribute("datetime") == "2026-01-15T12:03:00.000Z"


def test_a_page_that_gets_no_answer_says_so_until_it_gets_an_answer(view: View) -> None:
    from playwright.sync_api import expect

    with view() as viewer:
        page = viewer.go("/")
        page.context.set_offline(True)
        expect(page.locator("body")).to_have_class("stale", timeout=WAIT_MS)
        page.context.set_offline(False)
        expect(page.locator("body")).not_to_have_class("stale", timeout=WAIT_MS)
        # The browser and htmx say that the network was away.
        own = ("ERR_INTERNET_DISCONNECTED", "htmx:error: Failed to fetch")
        viewer.wrong = [each for each in viewer.wrong if not any(word in each for word in own)]


def test_the_pages_about_tokens_are_accessible(browser: Any, site: Site, tmp_path: Any) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    options = ("--tokens", str(tokens))
    with (
        served(site.scene.url, None, tmp_path / "log", *options) as url,
        viewing(browser, url) as viewer,
    ):
        page = viewer.go("/")
        page.wait_for_url("**/login")
        found = viewer.findings()
        page.locator("input[name=token]").fill("none")
        page.get_by_role("button", name="look").click()
        waits_text(page, "[role=alert]", "No token is like this one")
        for scheme, width in itertools.product(SCHEMES, WIDTHS):
            viewer.show(scheme, width)
            found += viewer.findings()
        # The browser's own words about the status.
        viewer.wrong = [each for each in viewer.wrong if "status of 403" not in each]
    assert not found, "\n".join(found)


def test_markup_creates_no_element_and_causes_no_request_even_after_an_update(
    site: Site, view: View
) -> None:
    """Checks texts that contain attributes of htmx. htmx looks for its attributes in each answer of the server."""
    markup = '<img src=//x.example onerror=alert(1)><p hx-get="//x.example" hx-trigger="load">\'"'
    scene = site.scene
    scene.die("marked", json.dumps({"type": markup, "message": markup, "traceback": markup}))
    scene.present("w-2", host=markup)
    scene.mirror()
    found = "main img, main [hx-get], main [onerror]"
    with view() as viewer:
        dialogs: list[str] = []
        viewer.page.on("dialog", lambda each: (dialogs.append(each.message), each.dismiss()))
        for path in ("/workers", "/dead", f"/jobs/{QUEUE}/marked", "/log", f"/queues/{QUEUE}"):
            page = viewer.go(path)
            assert page.locator(found).count() == 0
            assert "<img src" in page.locator("main").inner_text()
        page = viewer.go("/dead")
        scene.die("marked-2", json.dumps({"type": markup, "message": markup, "traceback": markup}))
        waits_text(page, "tbody tr:has-text('marked-2')", "<img src")
        assert page.locator(found).count() == 0
        assert dialogs == []
