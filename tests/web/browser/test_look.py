"""Chromium shows each page without an error, and axe finds no problem. The pages are shown light and dark, in the width
of a phone and of a desktop."""

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
