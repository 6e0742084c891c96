"""The check of a server. It reads INFO and CONFIG, and then accepts the server, makes remarks, or refuses it."""

from __future__ import annotations

import pytest

from rq_core.protocol.engine.server_check import judge_coverage, judge_info, judge_persistence

GOOD = {
    "redis_version": "7.0.15",
    "role": "master",
    "maxmemory": "0",
    "maxmemory_policy": "noeviction",
}


def test_the_server_check_makes_no_remark_on_a_suitable_server() -> None:
    assert judge_info(GOOD) == []
    assert judge_info({}) == []
    assert judge_persistence({"aof_enabled": "1"}, {"save": "", "appendfsync": "everysec"}) == []


@pytest.mark.parametrize(
    "facts, about, refuse, words",
    [
        ({"redis_version": "6.2.14"}, "version", True, "Redis 6.2.14, which is too old: install Redis 7.0"),
        ({"role": "slave", "master_host": "a", "master_port": "1"}, "replica", True, "of a:1: name the primary"),
        ({"maxmemory": "9", "maxmemory_policy": "allkeys-lru"}, "eviction", True, "maxmemory-policy noeviction"),
        ({"maxmemory_policy": "allkeys-random"}, "eviction", False, "as soon as it has a maxmemory"),
        ({"maxmemory": "9", "maxmemory_policy": "volatile-lru"}, "eviction", False, "no expiry"),
    ],
)  # fmt: skip
def test_the_server_check_reports_an_unsuitable_version_role_or_eviction_policy(
    facts: dict[str, str], about: str, refuse: bool, words: str
) -> None:
    (remark,) = judge_info({**GOOD, **facts})

    assert (about, refuse) == (remark.about, remark.refuse)
    assert words in remark.says


def test_force_overrules_every_refusal_except_the_version() -> None:
    remarks = judge_info(
        {
            "redis_version": "5.0",
            "role": "slave",
            "maxmemory": "1",
            "maxmemory_policy": "allkeys-lfu",
        }
    )

    assert {"version": True, "replica": False, "eviction": False} == {
        r.about: r.final for r in remarks
    }


@pytest.mark.parametrize(
    "aof, save, fsync, about, words",
    [
        ("0", "", "everysec", "persistence", "keeps nothing on disk"),
        ("0", "3600 1", "everysec", "persistence", "CONFIG SET appendonly yes"),
        ("1", "", "no", "fsync", "CONFIG SET appendfsync everysec"),
    ],
)
def test_the_server_check_remarks_on_persistence_settings_that_would_lose_data_at_a_restart(
    aof: str, save: str, fsync: str, about: str, words: str
) -> None:
    (remark,) = judge_persistence({"aof_enabled": aof}, {"save": save, "appendfsync": fsync})

    assert (about, False) == (remark.about, remark.refuse)
    assert words in remark.says


def test_the_server_check_remarks_on_a_cluster_that_requires_full_coverage() -> None:
    (remark,) = judge_coverage({"cluster-require-full-coverage": "yes"})

    assert (remark.about, remark.refuse) == ("coverage", False)
    assert "CONFIG SET cluster-require-full-coverage no" in remark.says
    assert judge_coverage({"cluster-require-full-coverage": "no"}) == []
    assert judge_coverage({}) == []
