"""Computes where the nodes and the lines of a graph are drawn. No I/O.

Nodes are arranged in columns, and each node is to the right of all nodes before it. If a line passes a column, a gap
between the column's nodes is reserved for it, so that no line crosses a node. A line is left out if others imply it: if
c comes after b, and b after a, no line leads from a to c.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

NODES_MAX: Final = 200
"""Maximum number of nodes of a drawing."""
PARTS_MAX: Final = 1_000
"""Maximum number of line segments in a drawing. A line has one segment for each space between two columns that it
crosses."""
WIDTH: Final = 200
"""The width of a node. All lengths in this module are in pixels."""
HEIGHT: Final = 50
GAP: Final = 56
"""The space between two columns."""
SPACE: Final = 14
"""The vertical space between neighbours in a column."""
THIN: Final = 4
"""The height that a column reserves for a line that passes it."""
EDGE: Final = 12
"""The margin around a drawing."""
SEEN: Final = 480
"""Maximum distance of a column's first node from the top. A column that begins lower is moved to the top, so that a
viewer of a tall drawing need not scroll to see it."""
_ROUNDS: Final = 6
"""Number of rounds in which each node is moved towards its neighbours. More rounds improve little."""


class Point(NamedTuple):
    """A point of a drawing."""

    x: int
    y: int


class Drawing(NamedTuple):
    """A graph with the positions of its nodes and lines."""

    width: int
    height: int
    nodes: tuple[Point, ...]
    """The upper left corner of each node."""
    lines: tuple[tuple[Point, ...], ...]
    """The points of each line, from the right side of a node to the left side of a later one. The line is horizontal
    from each second point to the point after it."""


@lru_cache(maxsize=64)
def drawing_of(before: tuple[tuple[int, ...], ...]) -> Drawing | None:
    """Return the drawing of a graph; None if the graph is too large.

    ``before`` has, for each node, the numbers of the nodes that come before it. They are lower than the node's own
    number.
    """
    needed = drawn_lines(before)
    if needed is None:
        return None
    places = _Places(needed, _columns(needed))
    places.order()
    places.move()
    return places.drawing()


@lru_cache(maxsize=64)
def drawn_lines(before: tuple[tuple[int, ...], ...]) -> Sequence[Sequence[int]] | None:
    """Return, for each node, the nodes from which a line to it is drawn; None if the graph is too large.

    ``before``: as in drawing_of. A drawing of the result is the same as a drawing of ``before``.
    """
    if not before or len(before) > NODES_MAX:
        return None
    needed = _needed(before)
    columns = _columns(needed)
    parts = sum(columns[node] - columns[each] for node, some in enumerate(needed) for each in some)
    return needed if parts <= PARTS_MAX else None


def _needed(before: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return, for each node, the earlier nodes from which the drawing needs a line to it. No line is needed between two
    nodes if a path through other nodes joins them."""
    reached: list[int] = []
    """For each node: all nodes from which a path leads to it, as a bit set."""
    found = []
    for some in before:
        others = 0
        for each in some:
            others |= reached[each]
        found.append([each for each in dict.fromkeys(some) if not others >> each & 1])
        reached.append(others | sum(1 << each for each in set(some)))
    return found


def _columns(before: Sequence[Sequence[int]]) -> list[int]:
    """Return the column number of each node, from 0: the number of lines on the longest path to it."""
    found: list[int] = []
    for some in before:
        found.append(max((found[each] + 1 for each in some), default=0))
    return found


class _Places:
    """The items of a drawing, arranged in columns: the nodes, and a placeholder for each column that a line passes."""

    def __init__(self, before: Sequence[Sequence[int]], columns: Sequence[int]) -> None:
        self._count = len(before)
        self._column = list(columns)
        """The column of each item. The nodes come first, then the placeholders of lines."""
        self._left: list[list[int]] = [[] for _ in before]
        """For each item: the items in the column to its left with which lines connect it."""
        self._right: list[list[int]] = [[] for _ in before]
        self._lines: list[list[int]] = []
        for node, some in enumerate(before):
            for each in some:
                passed = [self._add(at) for at in range(columns[each] + 1, columns[node])]
                line = [each, *passed, node]
                self._lines.append(line)
                for one, next_one in pairwise(line):
                    self._right[one].append(next_one)
                    self._left[next_one].append(one)
        self._rows: list[list[int]] = [[] for _ in range(max(columns) + 1)]
        """For each column: its items from top to bottom."""
        for place, column in enumerate(self._column):
            self._rows[column].append(place)
        self._middle = [0.0] * len(self._column)
        """The vertical position of the middle of each item."""

    def _add(self, column: int) -> int:
        self._column.append(column)
        self._left.append([])
        self._right.append([])
        return len(self._column) - 1

    def _height(self, place: int) -> int:
        return HEIGHT if place < self._count else THIN

    def order(self) -> None:
        """Order the items of each column so that few lines cross."""
        rank = [0.0] * len(self._column)

        def sort(row: list[int], beside: Sequence[Sequence[int]]) -> None:
            wish = {
                place: sum(rank[each] for each in beside[place]) / len(beside[place])
                if beside[place]
                else rank[place]
                for place in row
            }
            row.sort(key=wish.__getitem__)
            for at, place in enumerate(row):
                rank[place] = (at + 0.5) / len(row)

        for row in self._rows:
            for at, place in enumerate(row):
                rank[place] = (at + 0.5) / len(row)
        for _ in range(_ROUNDS):
            for row in self._rows[1:]:
                sort(row, self._left)
            for row in reversed(self._rows[:-1]):
                sort(row, self._right)
        for row in self._rows[1:]:
            sort(row, self._left)

    def move(self) -> None:
        """Move the items of each column vertically towards the items with which lines connect them. The items of a
        column keep their order and stay apart."""
        for row in self._rows:
            self._settle(row, [0.0] * len(row))
        for _ in range(_ROUNDS):
            for row in self._rows[1:]:
                self._follow(row, self._left)
            for row in reversed(self._rows[:-1]):
                self._follow(row, self._right)
        for row in self._rows[1:]:
            self._follow(row, self._left)

    def _follow(self, row: Sequence[int], beside: Sequence[Sequence[int]]) -> None:
        wishes = []
        for place in row:
            heights = [self._middle[each] for each in beside[place]]
            wishes.append(sum(heights) / len(heights) if heights else self._middle[place])
        self._settle(row, wishes)

    def _settle(self, row: Sequence[int], wishes: Sequence[float]) -> None:
        """Set the vertical positions of a column's items, as near to ``wishes`` as their order and sizes allow."""
        offsets, offset = [], 0.0
        for at, place in enumerate(row):
            if at:
                offset += (self._height(row[at - 1]) + self._height(place)) / 2 + SPACE
            offsets.append(offset)
        # Places whose wishes conflict stand together, around the mean of their wishes.
        blocks: list[tuple[float, int]] = []
        for wish, offset in zip(wishes, offsets, strict=True):
            total, count = wish - offset, 1
            while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
                before, size = blocks.pop()
                total, count = total + before, count + size
            blocks.append((total, count))
        starts = [total / count for total, count in blocks for _ in range(count)]
        for place, start, offset in zip(row, starts, offsets, strict=True):
            self._middle[place] = start + offset

    def drawing(self) -> Drawing:
        """Return the drawing, with positions in whole pixels."""
        tops = [self._middle[each] - self._height(each) / 2 for each in range(len(self._column))]
        highest = min(tops)
        top = [round(each - highest) + EDGE for each in tops]
        for row in self._rows:
            if (below := top[row[0]] - EDGE) > SEEN:
                for place in row:
                    top[place] -= below
        left = [EDGE + column * (WIDTH + GAP) for column in self._column]
        lines = []
        for line in self._lines:
            points = []
            for place in line:
                y = top[place] + self._height(place) // 2
                points += [Point(left[place], y), Point(left[place] + WIDTH, y)]
            lines.append(tuple(points[1:-1]))
        bottom = max(top[each] + self._height(each) for each in range(len(top)))
        nodes = tuple(Point(left[each], top[each]) for each in range(self._count))
        return Drawing(max(left) + WIDTH + EDGE, bottom + EDGE, nodes, tuple(lines))
