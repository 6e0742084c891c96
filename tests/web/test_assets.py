"""Templates and scripts obey the strict Content-Security-Policy. Files of other projects are unchanged."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from jinja2 import StrictUndefined, UndefinedError

from rq_core.web.dashboard import STATIC, TEMPLATES, environment

HTMX = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
"""Hash of the file dist/htmx.min.js in the package htmx.org 4.0.1."""


def templates() -> list[Path]:
    return sorted(TEMPLATES.glob("*.html"))


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.name)
def test_a_template_has_nothing_that_the_content_security_policy_forbids(path: Path) -> None:
    text = path.read_text()

    assert not re.search(r"\son\w+\s*=", text), "an inline event handler"
    assert not re.search(r"hx-(on|live|vals|headers)\b", text), "htmx would have to evaluate it"
    assert not re.search(r"hx-trigger=[\"'][^\"']*\[", text), "a filter in a trigger is evaluated"
    assert not re.search(r"\sstyle\s*=|<style", text), "an inline style"
    assert not re.search(r"<script(?! src=\"\{\{ base \}\}/static/)", text), "an inline script"
    assert "javascript:" not in text
    assert not re.search(r"https?://", text), "something from elsewhere"


@pytest.mark.parametrize("path", templates(), ids=lambda path: path.name)
def test_no_template_turns_escaping_off_or_has_an_unquoted_attribute(path: Path) -> None:
    text = path.read_text()

    assert not re.search(r"\|\s*safe\b|autoescape|Markup", text)
    assert not re.search(r"\s[\w-]+=\{\{", text), "an attribute without quotes"


def test_autoescape_is_on_and_an_undefined_name_in_a_template_is_an_error() -> None:
    made = environment()

    assert made.autoescape is True
    assert made.undefined is StrictUndefined
    assert made.from_string("{{ x }}").render(x="<b>") == "&lt;b&gt;"
    with pytest.raises(UndefinedError):
        made.from_string("{{ missing }}").render()


def test_the_file_of_htmx_equals_the_file_of_its_release() -> None:
    (file,) = STATIC.glob("htmx-*.js")

    assert file.name == "htmx-4.0.1.min.js"
    assert hashlib.sha256(file.read_bytes()).hexdigest() == HTMX


def test_scripts_and_styles_are_small_and_load_nothing_from_other_places() -> None:
    style, live = (STATIC / "style.css").read_text(), (STATIC / "live.js").read_text()

    assert len(style) < 20_000
    assert not re.search(r"url\(|@import", style)
    assert not re.search(r"\beval\b|Function\(|innerHTML|document\.write|https?:", live)
