"""The site of the documentation. It builds without a warning, loads nothing from other hosts, and has no broken
link."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.docs import look, site
from tests.docs.transcript import with_snippets

ROOT = site.ROOT
LINK = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_site_builds_in_strict_mode_and_loads_nothing_from_other_hosts(tmp_path: Path) -> None:
    """Builds a copy of the pages. Zensical writes files beside the pages."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)

    pages = site.build(tmp_path)

    assert [] == site.foreign_of(pages)
    assert (pages / "five-minutes" / "index.html").is_file()
    items = json.loads((pages / "search.json").read_text())["items"]
    for words, page in look.SEARCHES.items():
        sections = [i["title"] + i["text"] for i in items if i["location"].startswith(page)]
        assert any(words.lower() in each.lower() for each in sections), (words, page)


@pytest.mark.slow
def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[there](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: a\nsite_dir: build/site\n")

    with pytest.raises(site.SiteError, match="nowhere"):
        site.build(tmp_path)


@pytest.mark.slow
def test_mkdocs_alone_builds_the_pages_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--theme", "mkdocs", "-d", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip

    assert (0, []) == (done.returncode, re.findall("WARNING.*", done.stderr))


@pytest.mark.parametrize(
    "page",
    [
        '<script async src="https://unpkg.com/mermaid.js"></script>',
        "<img alt=x src=//example.org/a.png>",
        '<link href="https://fonts.googleapis.com/css" rel="stylesheet">',
        "@import url(https://example.org/a.css);",
    ],
)
def test_the_check_of_the_site_finds_resources_that_a_page_loads_from_other_hosts(
    page: str,
) -> None:
    assert len(list(site.foreign(page))) == 1


def test_the_check_of_the_site_allows_plain_links_to_other_hosts() -> None:
    page = '<a href="https://keepachangelog.com">x</a><img src="plots/a.svg"><link rel="canonical" href="https://a.b">'

    assert [] == list(site.foreign(page))


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub and Python-Markdown give to the headings of a text."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE):
        plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower())
        found |= {plain.strip().replace(" ", "-"), re.sub(r"[-\s]+", "-", plain.strip())}
    return found


def test_links_between_markdown_files_lead_to_existing_files() -> None:
    """Checks all Markdown files, also the README. Zensical checks only the pages of the site."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md"],  # noqa: S607 - whichever git is on PATH
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    broken = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if not path.is_file():
            continue
        for link in LINK.findall(FENCE.sub("", with_snippets(path.read_text()))):
            target, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            to = (path.parent / target).resolve() if target else path
            if not to.exists() or (anchor and anchor not in anchors(to.read_text())):
                broken.append(f"{name}: {link}")

    assert [] == broken


def test_no_page_links_to_a_file_outside_docs() -> None:
    """Checks all links of pages. The site has no page for a file outside docs."""
    docs = ROOT / "docs"
    outside = [
        f"{path.name}: {link}"
        for path in docs.rglob("*.md")
        for link in LINK.findall(FENCE.sub("", path.read_text()))
        if not re.match(r"[a-z]+:|#", link)
        and not (path.parent / link.partition("#")[0]).resolve().is_relative_to(docs)
    ]

    assert [] == outside
