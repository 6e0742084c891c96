"""Builds the pages of ``docs/`` with Zensical, and checks that they load nothing from other hosts."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BUILD_S_MAX: Final = 120
"""The longest time (s) that a build may take."""
_COLOURS: Final = re.compile(r"\x1b\[[\d;]*m")
_LOADED: Final = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*?\ssrc=["']?(?P<src>(?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|icon))[^>]*?\shref=["']?(?P<href>(?:https?:)?//[^"'\s>]+)"""
    r"""|@import\s+(?:url\()?["']?(?P<css>(?:https?:)?//[^"')\s]+)""",
    re.IGNORECASE,
)


class SiteError(Exception):
    """The error for a site that cannot be built."""


def build(root: Path = ROOT) -> Path:
    """Build the pages of a checkout in strict mode. Return the directory with the built pages.

    Raises SiteError with the messages of Zensical.
    """
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=root, capture_output=True, text=True, timeout=BUILD_S_MAX, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SiteError(_COLOURS.sub("", done.stdout + done.stderr))
    return root / "build" / "site"


def foreign(text: str) -> Iterator[str]:
    """Yield the addresses on other hosts that the HTML or CSS of a page would load. Links do not count."""
    for match in _LOADED.finditer(text):
        yield next(filter(None, match.groups()))


def foreign_of(directory: Path) -> list[str]:
    """Return ``page: address`` for each address on another host that the built pages would load."""
    return [
        f"{page.relative_to(directory)}: {address}"
        for page in sorted(directory.rglob("*"))
        if page.suffix in {".html", ".css"}
        for address in foreign(page.read_text(encoding="utf-8"))
    ]


def main() -> int:
    """Build and check the site. Return the exit status."""
    try:
        directory = build()
    except SiteError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if found := foreign_of(directory):
        sys.stderr.write("would be loaded from elsewhere:\n" + "\n".join(found) + "\n")
        return 1
    sys.stdout.write(f"{sum(1 for _ in directory.rglob('*.html'))} pages in {directory}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
