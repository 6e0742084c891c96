"""A node of a cluster is frozen or cut off under load. The queues of the other shards continue.

`scripts/prove/live outages --kind frozen_node|bus_partition` is the longer form.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.clusters import RedisCluster
from tests.kit.servers import engines
from tests.rigs import shards


@pytest.mark.parametrize("kind", shards.CLUSTER_KINDS)
@pytest.mark.slow
def test_a_failed_node_delays_only_its_own_shard(
    cluster: RedisCluster, tmp_path: Path, kind: str
) -> None:
    """Checks that the promoted primary serves the shard's queue at once.

    A new process finds this primary, although the process' URL names the failed node first.
    """
    stage = shards.ClusterStage(cluster)
    found = shards.strike(stage, kind, shards.SECONDS_MIN, tmp_path, cluster.engine)

    assert shards.problems([found]) == [], found


@pytest.mark.parametrize("engine", engines()[:1], ids=lambda engine: str(engine.name))
@pytest.mark.slow
def test_with_required_full_coverage_a_failed_node_stops_all_shards(
    cluster: RedisCluster, tmp_path: Path
) -> None:
    """Checks `cluster-require-full-coverage yes`, Redis' default.

    The doctor and each starting worker warn of this setting.
    """
    cluster.set("cluster-require-full-coverage", "yes")
    stage = shards.ClusterStage(cluster)
    found = shards.strike(stage, "frozen_node", shards.SECONDS_MIN, tmp_path, cluster.engine)

    assert (found.lost, found.twice) == (0, 0)
    assert found.again_s < shards.AGAIN_MAX
    assert found.refused_call_s < shards.REFUSED_MAX
