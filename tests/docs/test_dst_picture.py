"""The picture of the two nights in which clocks change, and of what schedules do in these nights.

The picture has light and dark colours, and loads nothing from other hosts.
"""

from xml.etree import ElementTree as ET

from scripts.docs import dst_picture
from scripts.docs.dst_picture import CRONS, HOURS, NIGHTS, instants
from scripts.docs.site import foreign

_SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_of_the_clock_change_has_a_dot_for_each_instant() -> None:
    tree = ET.fromstring(dst_picture.svg())  # noqa: S314 - it is our own
    dots = [circle.findtext(f"{_SVG}title") for circle in tree.iter(f"{_SVG}circle")]
    spring, autumn = ({cron: instants(cron, night) for cron in CRONS} for night in NIGHTS)

    assert sum(map(len, [*spring.values(), *autumn.values()])) == len(dots)
    # Of the wall time in the gap, and of the one that comes twice: one each.
    assert 1 == len(spring["30 2 * * *"]) == len(autumn["30 2 * * *"])
    assert {"03:00 +0200", "02:30 +0200"} <= set(dots)
    assert HOURS * 3 + 1 == len(spring["*/20 * * * *"]) == len(autumn["*/20 * * * *"])


def test_the_picture_shows_the_wall_times_of_both_clock_changes() -> None:
    words = [text.text for text in ET.fromstring(dst_picture.svg()).iter(f"{_SVG}text")]  # noqa: S314

    assert {"02:00 → 03:00", "03:00 → 02:00"} <= set(words)


def test_the_picture_of_the_clock_change_has_dark_colours_and_no_script() -> None:
    picture = dst_picture.svg()

    assert "prefers-color-scheme:dark" in picture
    assert "<script" not in picture
    assert [] == list(foreign(picture))
