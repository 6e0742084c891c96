"""Records the values for the picture of the Grafana dashboard, from a Prometheus with rq-core's metrics.

python -m scripts.docs.pictures.record http://localhost:9090 --minutes 15
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.parse
import urllib.request
from typing import Any

from scripts.docs.panels import ROWS
from scripts.docs.pictures.board import POINTS, RECORDED, SHOWN


def main() -> int:
    """Write the recorded values. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", metavar="URL")
    parser.add_argument("--minutes", type=float, default=15)
    given = parser.parse_args()
    end = time.time()
    start = end - 60 * given.minutes
    recorded: dict[str, Any] = {"minutes": given.minutes, "series": {}}
    for title, panels in ROWS:
        if title not in SHOWN:
            continue
        for panel in panels:
            for expression, _ in panel.shows:
                recorded["series"][expression] = _asked(
                    given.prometheus, expression.replace("$queue", ".*"), start, end
                )
    text = json.dumps(recorded, separators=(",", ":"))
    # A line for each expression, so that a change can be read.
    RECORDED.write_text(text.replace(']],"', ']],\n"') + "\n", encoding="utf-8")
    return 0


def _asked(prometheus: str, expression: str, start: float, end: float) -> list[Any]:
    """Return the series that Prometheus has for an expression: pairs of labels and values. None: a missing value."""
    step = (end - start) / (POINTS - 1)
    query = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": step})
    address = f"{prometheus}/api/v1/query_range?{query}"
    with urllib.request.urlopen(address, timeout=30) as answer:  # noqa: S310 - the user names it
        found = json.load(answer)["data"]["result"]
    series = []
    for each in found:
        values: list[float | None] = [None] * POINTS
        for at, value in each["values"]:
            number = float(value)
            if number == number:  # noqa: PLR0124 - NaN is not
                values[round((at - start) / step)] = float(f"{number:.4g}")
        labels = {name: text for name, text in each["metric"].items() if name != "job"}
        series.append([labels, values])
    return series


if __name__ == "__main__":
    sys.exit(main())
