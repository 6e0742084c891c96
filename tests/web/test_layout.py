"""Where the nodes and the lines of a flow's graph are drawn."""

from __future__ import annotations

import random
from itertools import combinations, pairwise

import pytest

from rq_core.web.graph.layout import (
    EDGE,
    GAP,
    HEIGHT,
    NODES_MAX,
    PARTS_MAX,
    SEEN,
    WIDTH,
    Drawing,
    Point,
    drawing_of,
)

Before = tuple[tuple[int, ...], ...]
DIAMOND: Before = ((), (0,), (0,), (1, 2))


def drawn(*before: tuple[int, ...]) -> Drawing:
    found = drawing_of(before)
    assert found is not None
    return found


def random_graph(seed: int) -> Before:
    chance = random.Random(seed)
    nodes = chance.randrange(1, 60)
    return tuple(
        tuple(sorted({chance.randrange(n) for _ in range(chance.randrange(4))})) if n else ()
        for n in range(nodes)
    )


def leads(drawing: Drawing, line: tuple[Point, ...]) -> tuple[int, int]:
    """Return the nodes at which a line begins and ends."""
    starts = {Point(x + WIDTH, y + HEIGHT // 2): n for n, (x, y) in enumerate(drawing.nodes)}
    ends = {Point(x, y + HEIGHT // 2): n for n, (x, y) in enumerate(drawing.nodes)}
    return starts[line[0]], ends[line[-1]]


def reached(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return all pairs of nodes between which a path leads."""
    found: dict[int, set[int]] = {}
    for before, node in sorted(edges, key=lambda edge: edge[1]):
        found.setdefault(node, set()).update({before}, found.get(before, set()))
    return {(before, node) for node, some in found.items() for before in some}


@pytest.mark.parametrize("seed", range(15))
def test_the_nodes_of_a_graph_do_not_overlap_and_lie_inside_the_drawing(seed: int) -> None:
    drawing = drawn(*random_graph(seed))

    for one, other in combinations(drawing.nodes, 2):
        assert abs(one.x - other.x) >= WIDTH + GAP or abs(one.y - other.y) > HEIGHT, (one, other)
    for x, y in drawing.nodes:
        assert EDGE <= x <= drawing.width - EDGE - WIDTH
        assert EDGE <= y <= drawing.height - EDGE - HEIGHT


@pytest.mark.parametrize("seed", range(15))
def test_each_line_of_the_drawing_leads_forward_and_crosses_no_node(seed: int) -> None:
    drawing = drawn(*random_graph(seed))

    for line in drawing.lines:
        assert all(one.x < other.x for one, other in pairwise(line))
        for number, (one, other) in enumerate(pairwise(line)):
            if number % 2:  # It passes a column.
                assert one.y == other.y
                column = [each.y for each in drawing.nodes if each.x == one.x]
                assert not any(y <= one.y <= y + HEIGHT for y in column)
            else:  # It lies in the gap between two columns.
                assert other.x - one.x == GAP


@pytest.mark.parametrize("seed", range(15))
def test_the_lines_of_the_drawing_show_every_dependency_and_none_is_redundant(seed: int) -> None:
    before = random_graph(seed)
    drawing = drawn(*before)

    lines = {leads(drawing, line) for line in drawing.lines}

    assert len(lines) == len(drawing.lines)
    assert reached(lines) == reached({(b, node) for node, some in enumerate(before) for b in some})
    for line in lines:
        assert line not in reached(lines - {line})


def test_the_nodes_of_a_chain_are_drawn_in_one_level_row() -> None:
    drawing = drawn((), (0,), (1,), (2,), (3,))

    assert {y for _, y in drawing.nodes} == {EDGE}
    assert [x for x, _ in drawing.nodes] == [EDGE + n * (WIDTH + GAP) for n in range(5)]
    assert drawing.height == HEIGHT + 2 * EDGE


def test_a_graph_in_the_form_of_a_diamond_is_drawn_symmetrically() -> None:
    a, b, c, d = drawn(*DIAMOND).nodes

    assert a.y == d.y == (b.y + c.y) // 2
    assert a.x < b.x == c.x < d.x


def test_lines_between_two_columns_do_not_cross_if_they_need_not() -> None:
    # The second row is declared in the opposite order.
    drawing = drawn((), (), (), (2,), (1,), (0,))

    assert [drawing.nodes[n].y for n in (0, 1, 2)] == [drawing.nodes[n].y for n in (5, 4, 3)]


def test_a_node_that_depends_on_sixty_nodes_is_drawn_at_the_top() -> None:
    drawing = drawn(*[()] * 60, tuple(range(60)))

    assert drawing.nodes[-1].y == EDGE
    assert drawing.height > 2 * SEEN


def test_a_graph_with_too_many_nodes_or_lines_has_no_drawing() -> None:
    row = tuple(range(100))

    assert drawing_of(((),) * NODES_MAX) is not None
    assert drawing_of(((),) * (NODES_MAX + 1)) is None
    assert 100 * 100 > PARTS_MAX
    assert drawing_of(((),) * 100 + (row,) * 100) is None
    assert drawing_of(()) is None
