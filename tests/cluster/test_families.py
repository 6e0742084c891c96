"""A job runs many children on another shard of a cluster, while workers are killed, slots move, or primaries are lost.

`scripts/prove/live parks wide --shards moves|parent|children|both` is the longer form.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.clusters import RedisCluster
from tests.kit.servers import engines
from tests.rigs.parks import sharded

one_engine = pytest.mark.parametrize("engine", engines()[:1], ids=lambda engine: str(engine.name))


@one_engine
@pytest.mark.slow
def test_a_parent_counts_each_child_once_if_both_shards_lose_their_last_writes_and_are_restored(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    audit_url = f"sqlite:///{tmp_path / 'audit.db'}"

    found = sharded.strike(
        cluster,
        audit_url,
        tmp_path,
        150,
        "both",
        width=75,
        every_s=2.5,
        processes=3,
        seconds_max=60,
    )

    assert [] == found.problems
    assert found.losses == 2
    assert found.kills >= 1


@one_engine
@pytest.mark.slow
def test_a_parent_counts_each_child_once_while_the_slots_of_both_queues_move(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    audit_url = f"sqlite:///{tmp_path / 'audit.db'}"

    found = sharded.strike(
        cluster,
        audit_url,
        tmp_path,
        150,
        "moves",
        width=75,
        every_s=2.5,
        processes=3,
        seconds_max=60,
    )

    assert [] == found.problems
    assert found.moves >= 1
    assert found.kills >= 1
