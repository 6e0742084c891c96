"""A short search through the models of durable jobs. ``scripts/prove/model --states`` makes the long search."""

import pytest

from tests.rigs.durable.worlds import SHORT

BUGS = [(name, bug) for name, kind in SHORT.items() for bug in kind.bugs]


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.slow
def test_every_order_of_calls_in_the_durable_model_keeps_the_promises_and_can_come_to_an_end(
    name: str,
) -> None:
    verdict = SHORT[name].verdict()

    assert "" == verdict.problem
    assert verdict.states > 100


@pytest.mark.parametrize(("name", "bug"), BUGS, ids=[bug for _name, bug in BUGS])
def test_the_search_of_the_durable_model_finds_each_planted_bug(name: str, bug: str) -> None:
    assert SHORT[name].verdict(bug).problem
