"""The drawn pictures of the pages, by file name. The diagrams of states and of daylight saving have their own
modules.
"""

from __future__ import annotations

from scripts.docs.pictures import board, charts, journey, terminal, timelines


def pictures() -> dict[str, str]:
    """Return the SVG text of each picture, by its file name in ``docs/pictures``."""
    return {
        **{f"{name}.svg": timelines.timeline(name) for name in timelines.SCENES},
        **{f"{name}.svg": charts.chart(name) for name in charts.CHARTS},
        "way.svg": journey.way(),
        "lease.svg": journey.lease(),
        "board.svg": board.board(),
        "top.svg": terminal.top(),
    }
