"""Each page in Chromium, light and dark, on a phone and on a desktop. No page has an error, and axe finds no
problem."""

from __future__ import annotations

import itertools

import pytest

from tests.kit.browser import SCHEMES, WIDTHS
from tests.web.browser.conftest import View
from tests.web.test_pages import ADDRESSES


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_page_causes_no_browser_error_and_axe_finds_no_problem_on_it(
    view: View, name: str
) -> None:
    found = []
    with view() as viewer:
        viewer.go(ADDRESSES[name])
        for scheme, width in itertools.product(SCHEMES, WIDTHS):
            viewer.show(scheme, width)
            found += [f"{scheme}, {width} px: {each}" for each in viewer.findings()]

    assert not found, "\n".join(found)
