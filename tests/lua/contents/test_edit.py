"""Edits of waiting jobs: what is in the keys after an edit, and which edits are refused."""

import pytest

from rq_core import errors
from rq_core.doctor import examine
from tests.kit.consistency import assert_consistent
from tests.kit.seed import Seed, events_of
from tests.lua.contents.entries import T, entry

LANE = "2+host=h"


def ids(seed: Seed, limit: int = 100) -> list[str]:
    return [job.id for job in seed.claim(limit).jobs]


def test_an_edit_of_the_priority_moves_a_job_without_caps_to_the_end_of_another_list(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b")
    seed.enqueue("c", priority="high")

    changes = seed.changes(lambda: seed.edit("a", priority="high"))

    assert changes == {
        "state": {"a": (None, f"ready task=t priority=high seq=4 since={T}")},
        "ready:1": (["c"], ["c", "a"]),
        "meta": {"sequence": ("3", "4"), "tombstones": (None, "1")},
        "outbox": [entry(3, "edited", '[["a",4,null,"high",null,null,null,"normal",null]]', by="c-1")],
    }  # fmt: skip
    assert ["c", "a", "b"] == ids(seed)


def test_a_job_whose_priority_is_changed_and_changed_back_is_claimed_once(seed: Seed) -> None:
    seed.enqueue("a", "b")
    seed.edit("a", priority="low")
    seed.edit("a", priority="normal")

    assert ["a", "b"] == sorted(ids(seed))
    assert ids(seed) == []


def test_an_edit_of_the_priority_moves_a_job_in_a_lane_to_another_lane(seed: Seed) -> None:
    seed.enqueue("a", "b", lane=LANE)
    seed.enqueue("c", lane="1+host=i")

    changes = seed.changes(lambda: seed.edit("a", priority="critical"))

    line = f"ready task=t priority=critical lane=0+host=h seq=4 since={T}"
    assert changes["state"] == {"a": (f"ready task=t lane={LANE} seq=1 since={T}", line)}
    told = '[["a",4,null,"critical","0+host=h",null,null,"normal",null]]'
    assert changes["outbox"] == [entry(3, "edited", told, by="c-1")]
    assert ["a", "c", "b"] == ids(seed)


@pytest.mark.parametrize("lane", ["", LANE])
def test_a_job_that_an_edit_delays_keeps_its_place_in_line(seed: Seed, lane: str) -> None:
    seed.enqueue("a", "b", lane=lane)

    changes = seed.changes(lambda: seed.edit("a", due="+1000"))

    assert changes["scheduled"] == {"job|a": (None, T + 1_000.0)}
    said = f'[["a",1,{T + 1_000},"normal",null,null,null,"normal",null]]'
    assert changes["outbox"] == [entry(2, "edited", said, by="c-1")]
    assert ["b"] == ids(seed, 1)
    seed.enqueue("c", lane=lane)
    seed.advance(1_000)
    assert ["a", "c"] == ids(seed)


@pytest.mark.parametrize("lane", ["", LANE])
def test_a_delayed_job_that_is_edited_to_run_now_joins_the_end_of_its_list(
    seed: Seed, lane: str
) -> None:
    seed.enqueue("a", delay_ms=60_000, lane=lane)
    seed.enqueue("b", lane=lane)
    seed.take_token()

    changes = seed.changes(lambda: seed.edit("a", due="+0"))

    assert changes["scheduled"] == {"job|a": (T + 60_000.0, None)}
    said = f'[["a",2,null,"normal",null,null,{T + 60_000},"normal",null]]'
    assert changes["outbox"] == [entry(3, "edited", said, by="c-1")]
    assert seed.tokens() == 1
    assert ["b", "a"] == ids(seed)


@pytest.mark.parametrize("lane", ["", LANE])
def test_a_job_whose_retry_is_edited_to_run_now_keeps_its_place_in_line(
    seed: Seed, lane: str
) -> None:
    seed.enqueue("a", "b", lane=lane)
    seed.fail(seed.claim_one("a"), delay_ms=60_000)
    seed.take_token()

    changes = seed.changes(lambda: seed.edit("a", due="+0"))

    where = f" lane={lane}" if lane else ""
    assert changes["state"]["a"][1] == f"ready task=t{where} claim=1 failed=1 seq=1 since={T}"
    assert seed.tokens() == 1
    assert ["a", "b"] == ids(seed)


def test_a_scheduled_job_with_an_edited_priority_gets_a_new_place_in_line_when_it_is_due(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    seed.fail(seed.claim_one("a"), delay_ms=1_000)
    seed.enqueue("b", priority="high")

    changes = seed.changes(lambda: seed.edit("a", priority="high"))

    assert set(changes) == {"state", "outbox"}
    seed.enqueue("c", priority="high")
    seed.advance(1_000)
    assert ["b", "c", "a"] == ids(seed)


def test_an_edit_to_an_earlier_due_time_wakes_a_worker(seed: Seed) -> None:
    seed.enqueue("a", delay_ms=60_000)
    seed.take_token()

    seed.edit("a", due="+70000")
    assert seed.tokens() == 0
    seed.edit("a", due=str(seed.now + 50_000))

    assert seed.tokens() == 1
    assert {"job|a": T + 50_000.0} == seed.snapshot()["scheduled"]


def test_an_edited_deadline_is_written_to_the_state_line_and_to_the_index(seed: Seed) -> None:
    """The edit must remove the old deadline from the index. Otherwise the index would grow with each edit."""
    seed.enqueue("a", "b")
    changes = seed.changes(lambda: seed.edit("a", expires="+1000"))

    assert changes["state"] == {"a": (None, f"ready task=t seq=1 expires={T + 1_000} since={T}")}
    assert changes["expiring"] == {"job|a": (None, T + 1_000.0)}
    assert changes["meta"] == {"ties": (None, "1")}
    changes = seed.changes(lambda: seed.edit("a", expires="+5000"))
    assert changes["expiring"] == {"job|a": (T + 1_000.0, T + 5_000.0)}
    said = f'[["a",1,null,"normal",null,{T + 5_000},null,"normal",{T + 1_000}]]'
    assert changes["outbox"] == [entry(3, "edited", said, by="c-1")]
    seed.advance(4_999)
    assert ["a"] == ids(seed, 1)
    seed.complete(("a", str(seed.entries()[-1].id)))
    assert "job|a" not in seed.snapshot()["expiring"]


@pytest.mark.parametrize("lane", ["", LANE])
def test_an_edit_can_remove_a_deadline(seed: Seed, lane: str) -> None:
    seed.enqueue("a", lane=lane, expires_in_ms=1_000)
    seed.advance(1_000)
    changes = seed.changes(lambda: seed.edit("a", expires="-"))

    assert changes["expiring"] == {"job|a": (T + 1_000.0, None)}
    said = f'[["a",1,null,"normal",null,null,null,"normal",{T + 1_000}]]'
    assert changes["outbox"] == [entry(2, "edited", said, by="c-1", at=T + 1_000)]
    assert "expires" not in str(seed.state("a"))
    assert {"a": "same"} == seed.edit("a", expires="-")
    assert_consistent(seed.snapshot())
    seed.advance(86_400_000)
    assert ["a"] == ids(seed)


def test_an_edit_can_remove_a_deadline_together_with_another_change(seed: Seed) -> None:
    seed.enqueue("a", expires_in_ms=1_000)
    assert {"a": "never"} == seed.edit("a", due="+5000")

    assert {"a": "edited"} == seed.edit("a", due="+5000", priority="high", expires="-")
    assert f"scheduled task=t priority=high due={T + 5_000} since={T}" == seed.state("a")


def test_a_job_in_a_lane_expires_at_an_edited_deadline(seed: Seed) -> None:
    seed.enqueue("a", "b", lane=LANE)
    seed.edit("a", expires="+1000", priority="high")
    seed.advance(1_000)

    assert ["b"] == ids(seed)
    assert ["enqueued", "edited", "expired"] == events_of(seed.entries(), "a")


@pytest.mark.parametrize(
    ("before", "change"),
    [
        ({}, {"expires": "+0"}),
        ({}, {"expires": str(T)}),
        ({}, {"expires": "+1000", "due": "+1000"}),
        ({"delay_ms": 5_000}, {"expires": "+5000"}),
        ({"expires_in_ms": 5_000}, {"due": "+5000"}),
        ({"expires_in_ms": 5_000, "delay_ms": 1_000}, {"due": str(T + 9_000), "priority": "high"}),
    ],
)
def test_an_edit_is_refused_if_the_job_could_never_be_claimed_afterwards(
    seed: Seed, before: dict[str, int], change: dict[str, str]
) -> None:
    seed.enqueue("a", **before)

    assert seed.changes(lambda: assert_outcome(seed, "never", **change)) == {}


def assert_outcome(seed: Seed, outcome: str, *, line: str = "", **change: str) -> None:
    assert {"a": outcome} == seed.edit("a", line=line, **change)


@pytest.mark.parametrize("change", [{"priority": "normal"}, {"due": "+0"}, {"due": "1"}])
def test_an_edit_that_sets_the_present_values_changes_nothing(
    seed: Seed, change: dict[str, str]
) -> None:
    seed.enqueue("a")

    assert seed.changes(lambda: assert_outcome(seed, "same", **change)) == {}


def test_a_job_is_edited_only_if_its_state_line_is_the_expected_line(seed: Seed) -> None:
    for options in ({}, {"lane": LANE}, {"delay_ms": 5_000}):
        seed.enqueue("a", **options)
        line = seed.state("a") or ""
        stale = line.replace(f"since={T}", f"since={T - 1}")

        assert_outcome(seed, "changed", line=stale, priority="high")
        assert line == seed.state("a")
        assert_outcome(seed, "edited", line=line, priority="high")
        assert_outcome(seed, "changed", line=line, priority="low")
        seed.cancel("a")


def test_an_edit_that_names_a_job_twice_changes_the_job_once(seed: Seed) -> None:
    from rq_core.protocol.engine.plan import Call, parse_pairs

    seed.enqueue("a", "b")
    args = {"by": "ada", "why": "", "priority": "high", "due": "", "expires": ""}
    call = Call("edit", "q", args, parse_pairs, [("a", ""), ("a", "")], ("a",))

    assert {"a": "edited"} == seed.client.run(seed.client.calls.delivery.call(call))
    assert ["enqueued", "edited"] == events_of(seed.entries(), "a")


@pytest.mark.parametrize(
    ("field", "value"),
    [("priority", "urgent"), ("due", "soon"), ("due", "-5"), ("expires", "+"), ("expires", "1e3")],
)
def test_invalid_arguments_of_an_edit_are_refused_without_a_change(
    seed: Seed, field: str, value: str
) -> None:
    seed.enqueue("a")

    def edit() -> None:
        with pytest.raises(errors.BadArguments, match=field):
            seed.edit("a", **{field: value})

    assert seed.changes(edit) == {}


def test_an_edit_is_refused_while_the_backlog_of_the_audit_log_is_full(seed: Seed) -> None:
    """A loop of edits would otherwise fill Redis with events while no mirror runs."""
    seed.enqueue("a")
    seed.attach()
    seed.configure(backlog_max_jobs=1)

    with pytest.raises(errors.AuditBacklogFull):
        seed.edit("a", priority="high")
    assert f"ready task=t seq=1 since={T}" == seed.state("a")


def test_an_edit_and_a_claim_within_one_millisecond_take_effect_in_the_order_in_which_they_came(
    seed: Seed,
) -> None:
    """Checks both orders. An edited job must not be claimed with its old priority."""
    seed.enqueue("a", "b", lane=LANE)
    seed.edit("b", priority="high")
    assert ["b", "a"] == ids(seed)
    assert {"a": "running", "b": "running"} == seed.edit("a", "b", priority="low")

    seed.enqueue("due", delay_ms=1_000)
    seed.advance(1_000)
    seed.edit("due", due="+1")
    assert ids(seed) == []
    seed.advance(1)
    assert ["due"] == ids(seed)


def test_a_due_job_that_is_edited_stays_scheduled_until_the_next_claim(
    seed: Seed,
) -> None:
    seed.enqueue("a", delay_ms=1_000)
    seed.advance(5_000)

    seed.edit("a", priority="high")

    assert f"scheduled task=t priority=high due={T + 1_000} since={T + 5_000}" == seed.state("a")
    assert ["a"] == ids(seed)


def test_an_edit_moves_a_job_out_of_a_blocked_lane(seed: Seed) -> None:
    seed.cap("tenant=a", 1)
    seed.enqueue("holds", scopes=["tenant=a"])
    holds = seed.claim_one("holds")
    seed.enqueue("a", "b", scopes=["tenant=a"])
    assert ids(seed) == []

    changes = seed.edit("a", priority="critical")

    assert {"a": "edited"} == changes
    seed.complete(holds)
    assert ["a"] == ids(seed)


def test_an_edited_job_of_a_fair_queue_keeps_its_key(seed: Seed) -> None:
    seed.configure(fair=1)
    for tenant in ("x", "y"):
        seed.enqueue(*(f"{tenant}{n}" for n in range(3)), scopes=[f"fair={tenant}"])

    seed.edit("y2", priority="high")

    assert "lane=1+fair=y" in (seed.state("y2") or "")
    found = ids(seed)
    assert found[0] == "y2"
    assert sorted(found) == sorted(f"{t}{n}" for t in "xy" for n in range(3))


def test_jobs_of_a_paused_queue_can_be_edited(seed: Seed) -> None:
    seed.enqueue("a", "b")
    seed.configure(paused=1)

    assert {"b": "edited"} == seed.edit("b", priority="high")

    assert ids(seed) == []
    seed.configure(paused=0)
    assert ["b", "a"] == ids(seed)


def test_an_edited_unique_job_keeps_its_unique_name(seed: Seed) -> None:
    seed.enqueue("a", name="t/a")
    seed.edit("a", priority="high", expires="+9000", due="+1000")

    assert seed.enqueue("b", name="t/a").held
    seed.advance(1_000)
    seed.complete(seed.claim_one("a"))
    assert seed.enqueue("b", name="t/a").ids


def test_an_edit_moves_a_job_without_caps_into_the_lane_of_its_tasks_new_cap(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b")
    seed.cap("task=t", 1)

    seed.edit("b", priority="high")

    assert ["b"] == ids(seed)
    assert {"a": "edited"} == seed.edit("a", priority="low")
    assert "lane=3+task=t" in (seed.state("a") or "")


def test_250_jobs_can_be_edited_in_one_call(seed: Seed) -> None:
    names = [f"j{n:03}" for n in range(250)]
    seed.enqueue(*names[:125])
    seed.enqueue(*names[125:], lane=LANE)

    assert {"edited"} == set(seed.edit(*names, priority="high", expires="+9000").values())
    assert sorted(names) == sorted(ids(seed, 250))


def test_an_edited_job_that_expires_before_its_retry_is_dead_and_can_be_requeued(
    seed: Seed,
) -> None:
    """The deadline of the retry is before its due time. So it expires. The edit has removed its
    place in line, and a dead job needs no place."""
    seed.enqueue("a", expires_in_ms=5_000)
    seed.fail(seed.claim_one("a"), delay_ms=1_000)
    seed.edit("a", priority="low", due="+4000")
    seed.advance(5_000)
    assert ids(seed) == []

    line = f"dead task=t priority=low claim=1 failed=1 expires={T + 5_000} since={T + 5_000}"
    assert f"{line} reason=expired" == seed.state("a")
    assert [] == examine(seed.snapshot())
    assert {"a": "requeued"} == seed.requeue("a")
    assert ["a"] == ids(seed)
