"""Items of an iterator that are prepared before the consumer asks for them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rq_core.protocol.engine.prepared_items import PreparedItems


def test_at_most_one_item_of_a_producers_iterator_is_prepared_ahead() -> None:
    made = []

    def items() -> Iterator[int]:
        for n in range(3):
            made.append(n)
            yield n

    ahead = PreparedItems(items())
    ahead.prepare()
    ahead.prepare()

    assert made == [0]
    assert next(ahead) == 0
    assert list(ahead) == [1, 2]


def test_the_error_of_a_prepared_item_is_raised_at_each_request_for_the_item() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("two")

    ahead = PreparedItems(items())
    assert next(ahead) == 1
    ahead.prepare()

    for _ in range(2):
        with pytest.raises(KeyError, match="two"):
            next(ahead)


def test_preparing_ahead_works_at_the_end_of_an_iterator() -> None:
    ahead = PreparedItems([1])
    assert next(ahead) == 1
    ahead.prepare()

    assert list(ahead) == []
