"""The steps of several relays in a random order, between commits, kills and losses of Redis.

These tests are short forms of `scripts/prove/inbox worlds`.
"""

from __future__ import annotations

import pytest

from sql_audit.inbox.sending import Number
from tests.kit.inbox import Stage
from tests.rigs.inbox.worlds import Kind, run_world

SEEDS = (3, 8)
"""The seeds of two worlds. In both worlds relays are killed, Redis is flushed, and the database is set back to an older
state."""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", Kind)
def test_each_committed_row_becomes_one_job_whatever_the_order_of_the_steps_of_several_relays(
    stage: Stage, kind: Kind, seed: int
) -> None:
    outcome = run_world(stage, kind, seed)
    assert outcome.holds, outcome.document()
    assert outcome.jobs
    assert outcome.actions["kill"]


def test_the_test_of_random_orders_finds_a_relay_that_confuses_answers_to_its_batches(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Number, "__eq__", lambda *_: True)
    assert any(not run_world(stage, Kind.KILLS, seed).holds for seed in (2, 5, 8))
