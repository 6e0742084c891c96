"""A short form of `scripts/prove/chaos`: processes and servers fail under load, and each job's fate is reported."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.servers import engines
from tests.rigs.chaos import chaos
from tests.rigs.chaos.judge import Findings
from tests.rigs.chaos.nemesis import KINDS, Nemesis


@pytest.mark.timeout(420)
@pytest.mark.slow
def test_a_short_chaos_run_reports_every_lost_job(tmp_path: Path) -> None:
    """Runs two producers, four workers and two mirrors for half a minute. A seed chooses the faults."""
    found = chaos.run(
        tmp_path,
        minutes=0.5,
        seed=7,
        audit_url=f"sqlite:///{tmp_path / 'audit.db'}",
        engine=engines()[0],
    )

    assert found.problems == []
    assert found.clean
    document = found.document()
    assert document["unreported_loss"] == 0
    # It ran at all: under load, faults of many kinds, each with work after it.
    assert 200 < document["acknowledged"] <= document["attempted"]
    assert 200 < document["succeeded"] + document["dead"]
    assert document["faults"] >= 5
    assert document["ticks"] > 10
    for kind, recovery in found.findings.recoveries.items():
        assert len(recovery.seconds) == recovery.times, f"nothing went on after {kind}"


KEYS = [
    "seed", "minutes", "faults", "attempted", "acknowledged", "succeeded", "dead", "lost", "unexpected",
    "duplicated_explained", "duplicated_unexplained", "cap_violations", "orphaned_reported",
    "unreported_loss", "recovery_p99_s", "mirror_lag_p99_s", "verify", "gaps", "ticks",
]  # fmt: skip
"""The first keys of the last output line under --json, for programs that read the line."""


def outcome(verify: str = "holds", *, gaps: int = 0, **numbers: Any) -> chaos.Outcome:
    return chaos.Outcome(1, 1.0, 3, Findings(**numbers), verify, gaps=gaps)


def test_the_json_output_of_chaos_has_the_documented_keys() -> None:
    assert list(outcome().document())[: len(KEYS)] == KEYS


@pytest.mark.parametrize(
    "bad",
    [
        outcome(unreported_loss=1), outcome(unexpected=1), outcome(duplicated_unexplained=1), outcome(cap_violations=1),
        outcome("violated"), outcome("violated", gaps=1), outcome("unknown"),
    ],
)  # fmt: skip
def test_a_chaos_run_with_any_problem_is_not_reported_as_clean(bad: chaos.Outcome) -> None:
    assert outcome(lost=1, orphaned_reported=1, duplicated_explained=1).clean
    assert not bad.clean


def test_a_chaos_run_is_clean_if_verify_is_unknown_only_because_the_outbox_was_trimmed() -> None:
    assert outcome("unknown", gaps=1).clean


def test_a_seed_determines_the_order_of_the_faults() -> None:
    def first(seed: int) -> list[str]:
        order = Nemesis(None, None, random.Random(seed)).schedule()  # type: ignore[arg-type]
        return [next(order) for _ in range(2 * len(KINDS))]

    assert first(1) == first(1) != first(2)
    assert sorted(first(1)[: len(KINDS)]) == sorted(first(1)[len(KINDS) :]) == sorted(KINDS)
