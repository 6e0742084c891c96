"""Random flows beside a naive model, in a short form. `python -m tests.flows.random_graphs --seeds A..B` is the long
form."""

from __future__ import annotations

import pytest

from tests.flows import random_graphs


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["drain", "cancel"])
@pytest.mark.parametrize("seed", range(1, 3))
def test_a_random_flow_runs_the_nodes_of_a_naive_model_each_once(
    seed: int, on_failure: str
) -> None:
    found = random_graphs.check(seed, on_failure)

    assert [] == found.problems
    assert found.crashes > 0
    assert found.retries > 0
