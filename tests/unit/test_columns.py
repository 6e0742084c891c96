"""Tables on narrow terminals. A table drops columns before it breaks words, and always keeps its required columns."""

from __future__ import annotations

from rq_core.cli.columns import Column, chosen, widths

NAME = Column("queue", ["mail", "reports"])
NUMBER = Column("ready", ["1,000,000", "2"], right=True, whole=True)
NOTES = Column("", ["paused; full: task=send", ""])


def titles(width: int, *drop: str) -> list[str]:
    return [each.title for each in chosen([NAME, NUMBER, NOTES], width, drop)]


def test_columns_of_a_table_are_dropped_in_order_until_the_rest_fits() -> None:
    assert titles(100, "ready") == ["queue", "ready", ""]
    # reports, 1,000,000, task=send, and what stands between: 7 + 9 + 9 + 8.
    assert titles(33, "ready") == ["queue", "ready", ""]
    assert titles(32, "ready") == ["queue", ""]
    assert titles(3, "ready") == ["queue", ""]


def test_spare_width_goes_first_to_the_column_that_needs_the_least_width_to_be_complete() -> None:
    assert widths([NAME, NUMBER, NOTES], 33) == [7, 9, 9]
    assert widths([NAME, NUMBER, NOTES], 40) == [7, 9, 16]
    assert widths([NAME, NUMBER, NOTES], 400) == [7, 9, 23]
    assert widths([NAME, NUMBER, NOTES], 32) is None


def test_a_very_long_word_is_broken_before_a_column_is_dropped() -> None:
    assert Column("error", ["x" * 500]).least == 24
    assert Column("job", ["x" * 500], whole=True).least == 500


def test_a_wide_character_takes_two_columns() -> None:
    assert Column("name", ["東京都"]).least == 6
