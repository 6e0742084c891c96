"""The drawn pictures of the pages, by file name, without those of the states and of the two nights."""

from __future__ import annotations

from scripts.docs.pictures import board, charts, journey, terminal, timelines


def pictures() -> dict[str, str]:
    """Return the texts of these pictures, by their file name in ``docs/pictures``."""
    return {
        **{f"{name}.svg": timelines.timeline(name) for name in timelines.SCENES},
        **{f"{name}.svg": charts.chart(name) for name in charts.CHARTS},
        "way.svg": journey.way(),
        "lease.svg": journey.lease(),
        "board.svg": board.board(),
        "top.svg": terminal.top(),
    }
