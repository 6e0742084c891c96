"""A short comparison of random flows with a naive model.

`python -m tests.flows.random_graphs --seeds A..B` makes a long comparison.
"""

from __future__ import annotations

import pytest

from tests.flows import random_graphs


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["drain", "cancel"])
@pytest.mark.parametrize("seed", range(1, 3))
def test_a_random_flow_ends_as_a_naive_model_predicts_and_no_call_succeeds_twice(
    seed: int, on_failure: str
) -> None:
    found = random_graphs.check(seed, on_failure)

    assert [] == found.problems
    assert found.crashes > 0
    assert found.retries > 0
