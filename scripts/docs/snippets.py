"""Writes the Python blocks of the pages into one module per page, for the type checks of scripts/check (mypy, pyright).

Blocks that show a file of docs/examples are left out: that file is checked itself. The other blocks of a page follow
each other in its module, so a block may use names that an earlier block defines. PREAMBLES has the code that a page
assumes.

    python -m scripts.docs.snippets
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from scripts.docs.site import ROOT

TARGET: Final = ROOT / "build" / "snippets"
_BLOCK: Final = re.compile(r"^```python[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INCLUDED: Final = "--8<--"
_AWAITS: Final = re.compile(r"^(async with|await) ", re.MULTILINE)
PREAMBLES: Final = {
    "docs/how-to/django.md": """
        # pyright infers a wrong class for what Django's test client returns.
        # pyright: reportAttributeAccessIssue=false
    """,
    "README.md": """
        from rq_core import Cap, GiveUp, Rate, RetryLater, RetryPolicy

        def bank_is_busy() -> bool: ...
        def known(account: str) -> bool: ...
    """,
    "docs/how-to/handlers.md": """
        import contextlib
        import logging
        from typing import Any
        from collections.abc import Iterator
        import structlog
        from rq_core import JobContext, JobLogFilter, current_job, testing

        def anything() -> Any: ...

        statistics = request = my_session = FakeSession = anything()
    """,
    "docs/how-to/waiting.md": """
        from decimal import Decimal
        from rq_core import App

        app = App()
    """,
}
"""The code before the blocks of some pages: names that the blocks use and do not define, and comments for pyright."""
_HEAD: Final = """\
# mypy: disable-error-code=empty-body
# pyright: reportMissingImports=false, reportGeneralTypeIssues=false
from __future__ import annotations
"""
"""The first lines of each module. They allow bodies that are only `...`, and they allow Django, which has no types for
pyright, and structlog, which is not installed."""


def modules() -> dict[str, str]:
    """Return the text of each page's module, by file name. Pages without Python blocks of their own are left out."""
    found = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        name = page.relative_to(ROOT).as_posix()
        blocks = [b for b in _BLOCK.findall(page.read_text()) if _INCLUDED not in b]
        if blocks:
            module = re.sub(r"\W", "_", name.removesuffix(".md")) + ".py"
            found[module] = _module(name, blocks)
    return found


def _module(page: str, blocks: list[str]) -> str:
    preamble = "\n".join(line[8:] for line in PREAMBLES.get(page, "").splitlines())
    parts = [_HEAD, preamble]
    for number, block in enumerate(blocks):
        if _AWAITS.search(block):
            indented = "".join(f"    {line}\n" for line in block.splitlines())
            block = f"async def block_{number}() -> None:\n{indented}"  # noqa: PLW2901 - its new shape
        parts.append(block)
    return "\n".join(parts)


def main() -> None:
    """Write the modules. Remove the modules of pages that have no blocks any more."""
    TARGET.mkdir(parents=True, exist_ok=True)
    wanted = modules()
    for stale in TARGET.glob("*.py"):
        if stale.name not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        Path(TARGET / name).write_text(text)


if __name__ == "__main__":
    main()
