"""Fields of the key ``shown`` that rq-core does not write. Readers take none of them for a progress or a chunk, and do
not fail."""

from __future__ import annotations

from enum import IntEnum

import pytest

from rq_core.model.showing.shown import (
    CHUNK_BYTES_MAX,
    CHUNKS_MAX,
    TEXT_MAX,
    read_chunk,
    read_said,
    read_shown,
    said_as_text,
)
from rq_core.views.shown import progress_document, progress_says

HUGE = "9" * 5_000


def line(
    says: str = "1/2", *, at: str = "5", first: str = "1", last: str = "0", **more: str
) -> str:
    return (
        f"claim={more.get('claim', '1')} fence=1-2 at={at} says=1 said=1 start={more.get('start', '0')}"
        f" from={first} to={last} bytes={more.get('size', '0')} base=0{more.get('end', '')}\n{says}"
    )


@pytest.mark.parametrize(
    "says",
    [
        "1e999/1e999",
        "1e999/2",
        "1/1e999",
        f"{HUGE}/1",
        f"1/{HUGE}",
        "9007199254740993/1",
        "٣/٤",
        "",
    ],
)
def test_numbers_that_no_handler_can_report_are_not_read_as_a_progress(says: str) -> None:
    assert read_said(says) is None


@pytest.mark.parametrize(
    "text",
    [
        line(at=HUGE),
        line(claim=HUGE),
        line(last=HUGE),
        line(first="1", last=str(CHUNKS_MAX + 1)),
        line(size=HUGE),
        line(start=HUGE),
        line(end=f" left={HUGE}"),
        "claim=1",
        "\udcff",
        None,
    ],
)
def test_a_progress_line_that_no_script_can_have_written_is_not_read(text: str | None) -> None:
    assert read_shown(text) is None


def test_texts_and_chunks_are_cut_to_their_limits_when_read() -> None:
    found = read_shown(line(f"1/2 {'x' * 10_000}"))
    assert found is not None
    assert found.progress is not None
    assert len(found.progress.text) == TEXT_MAX
    chunk = read_chunk(1, f"claim=1 at=5\n{'x' * 100_000}")
    assert chunk is not None
    assert len(chunk.text) == CHUNK_BYTES_MAX
    assert read_chunk(1, f"claim={HUGE} at=5\nx") is None


@pytest.mark.parametrize(
    "says", ["5e-324/5e-324", "9007199254740991/5e-324", "0/0", "3/-", "0.1/0.30000000000000004"]
)
def test_each_progress_that_can_be_read_can_also_be_printed_and_reported(says: str) -> None:
    found = read_shown(line(says, at="9999999999999"))
    assert found is not None
    assert found.progress is not None
    assert progress_document(found.progress)
    assert progress_says(found.progress, 1, 5.0)


class Rows(IntEnum):
    DONE = 3


class Share(float):
    """A float whose repr is not a plain number, as with numpy's floats."""

    def __repr__(self) -> str:
        return f"Share({float(self)})"


def test_numbers_of_other_types_are_written_as_plain_numbers() -> None:
    assert said_as_text(Rows.DONE, Share(7.5), "") == "3/7.5"


def test_a_lone_surrogate_in_a_text_is_replaced() -> None:
    assert said_as_text(1, 2, "a\ud800b\udc80") == "1/2 a?b?"
