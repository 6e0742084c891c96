"""The model of durable jobs in short; at length: ``scripts/prove/model --states``."""

import pytest

from tests.rigs.durable.worlds import SHORT

BUGS = [(name, bug) for name, kind in SHORT.items() for bug in kind.bugs]


@pytest.mark.parametrize("name", SHORT)
def test_each_order_of_calls_keeps_the_promises_and_comes_to_an_end(name: str) -> None:
    verdict = SHORT[name].verdict()

    assert "" == verdict.problem
    assert verdict.states > 100


@pytest.mark.parametrize(("name", "bug"), BUGS, ids=[bug for _name, bug in BUGS])
def test_a_planted_bug_is_found(name: str, bug: str) -> None:
    assert SHORT[name].verdict(bug).problem
