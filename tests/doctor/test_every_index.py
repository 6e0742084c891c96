"""Damage to each member of each index: the member is removed or changed, a false member is added, or the key is
deleted.

The doctor reports the key and repairs the index. The tests take the keys from the table of keys. A list names the
members that no state line implies, each with its reason.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core.doctor import Kind
from rq_core.model.keys import KEY_TYPES
from tests.kit.busy import Busy
from tests.kit.consistency import assert_consistent
from tests.kit.doctor import look, mend, named
from tests.kit.seed import Seed

NO_INDEXES = {
    "state": "the indexes are derived from it; see test_doctor for lines that the log knows",
    "jobs": "arguments are nowhere else; see test_doctor",
    "caps": "limits are set by code and by operators; see test_lanes",
    "tasks": "workers register the policies",
    "schedules": "rules and jobs are nowhere else",
    "slots": "the answers to calls are nowhere else",
    "results": "what has ended is nowhere else; see test_doctor for an id that is in use",
    "returned": "values are nowhere else; see test_doctor",
    "outbox": "the log is a story of its own; see test_doctor",
    "wake": "a token belongs to no job; see test_doctor",
    "workers": "workers say themselves that they are there",
}

NOT_IMPLIED = {
    ("lose", "fair", "x"): "no lane of this key waits",
    ("lose", "fair", "y"): "no lane of this key waits",
    ("change", "fair", "x"): "no lane of this key waits",
    ("change", "fair", "y"): "no lane of this key waits",
    ("lose", "scheduled", "rate|"): "a moment that a claim has set; see test_lanes",
    ("change", "scheduled", "rate|"): "a moment that a claim has set",
    ("stray", "scheduled", "rate|"): "a moment that a claim has set for another rate",
    ("stray", "expiring", "rate|"): "a rate that was spent: `rates` lacks it",
    ("change", "leases", ""): "a worker extends its leases",
    (
        "change",
        "boxes",
        "0000000000000000|1",
    ): "what a step saved is nowhere else: see test_changed_boxes",
    (
        "change",
        "boxes",
        "0000000000000001|1",
    ): "what a step saved is nowhere else: see test_changed_boxes",
    ("lose", "boxes", "0000000000000000|"): "only the log may have what a step saved: see NO_BOX",
    ("lose", "boxes", "0000000000000001|"): "only the log may have what a step saved: see NO_BOX",
    ("empty", "boxes", ""): "its own finding, see tests/audit/restore/test_boxes.py",
    ("empty", "shown", ""): "what jobs show is nowhere else",
    ("stray", "fair", ""): "a key that was served once",
    ("empty", "meta", ""): "its own finding, and a new epoch; see test_doctor",
    ("stray", "meta", ""): "a fact that this release does not know",
}
"""Changes that damage no index, with the reason. Each row has the kind of change, the key, and the beginning of the
member."""

FACTS = (
    "sequence", "tombstones", "caps_by_task", "caps_by_key", "remembers", "results_bytes", "kept_bytes",
    "schedules", "durable", "shows",
)  # fmt: skip
"""Fields of `meta` that follow from the jobs and the limits."""


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        yield made


def lose(seed: Seed, key: str, member: str) -> None:
    remove: dict[str, Callable[[str, str], Any]] = {
        "hash": seed.control.hdel,
        "zset": seed.control.zrem,
        "list": lambda name, entry: seed.control.lrem(name, 1, entry),
    }
    remove[KEY_TYPES[key]](seed.keys(key), member)


def change(seed: Seed, key: str, member: str) -> None:
    if KEY_TYPES[key] == "hash":
        seed.control.hset(seed.keys(key), member, "?")
    else:
        seed.control.zadd(seed.keys(key), {member: 5})


def stray(seed: Seed, key: str, member: str) -> None:
    match KEY_TYPES[key]:
        case "hash":
            seed.control.hset(seed.keys(key), f"{member}-stray", "?")
        case "zset":
            seed.control.zadd(seed.keys(key), {f"{member}-stray": 0})
        case _:
            seed.control.rpush(seed.keys(key), f"{member}-stray")


def empty(seed: Seed, key: str, member: str) -> None:
    seed.control.delete(seed.keys(key))


PLANTS = {plant.__name__: plant for plant in (lose, change, stray, empty)}
INDEXES = [key for key in KEY_TYPES if key not in NO_INDEXES]
# The busy queue has no blocked lane if it is fair.
CASES = [
    (plant, key, fair)
    for key in INDEXES
    for plant in PLANTS
    for fair in ((False, True) if plant == "empty" else (key == "fair",))
    if (plant, key, "") not in NOT_IMPLIED
    and (plant != "change" or KEY_TYPES[key] != "list")
    and key != ("blocked" if fair else "fair")
]


def members_of(snapshot: dict[str, Any], key: str) -> list[str]:
    return [m for m in snapshot[key] if key != "meta" or m in FACTS]


def is_implied(plant: str, key: str, member: str) -> bool:
    passed = (start for p, k, start in NOT_IMPLIED if (p, k) == (plant, key))
    return not member.startswith(tuple(passed))


@pytest.mark.parametrize(("plant", "key", "fair"), CASES)
@pytest.mark.slow
def test_the_doctor_finds_and_repairs_planted_damage_to_an_index(
    seed: Seed, plant: str, key: str, fair: bool
) -> None:
    if key == "parked":
        seed.parked("asleep", "+5000000000", what="sleep")
        seed.parked("waits")
    busy = Busy(seed, fair=fair)
    # An entry too many in a list is a tombstone, and `meta` has their number.
    told = "meta" if plant == "stray" and KEY_TYPES[key] == "list" else key
    planted = 0
    for member in members_of(seed.snapshot(), key):
        before = seed.snapshot()
        if member not in before[key] or not is_implied(plant, key, member):
            continue
        PLANTS[plant](seed, key, member)
        planted += 1

        found = look(seed)

        assert told in named(found), f"{member}: {found}"
        assert {f.kind for f in found} <= {Kind.INDEX, Kind.NO_WAKE, Kind.BOX_DIFFERS}
        assert mend(seed) == [], member
        after = seed.snapshot()
        assert_consistent(after)
        for name in ("state", "jobs", "outbox", "holders", "waiting", "dead"):
            assert list(before[name]) == list(after[name]), name
    assert planted, "there is something to plant in"
    left = before["jobs"].keys() - {"dead", "asleep", "waits"}
    assert left == busy.drain()


@pytest.mark.parametrize(("plant", "key", "start"), NOT_IMPLIED)
def test_the_doctor_does_not_report_a_missing_index_member_that_no_state_line_proves(
    seed: Seed, plant: str, key: str, start: str
) -> None:
    Busy(seed, fair=key == "fair")
    members = [m for m in members_of(seed.snapshot(), key) if m.startswith(start)]
    for member in members[:1]:
        PLANTS[plant](seed, key, member)

        assert key not in named(look(seed))
    assert members


def test_each_key_of_a_queue_has_planted_damage_or_is_exempt() -> None:
    planted = {key for _, key, _ in CASES}

    assert KEY_TYPES.keys() == planted | NO_INDEXES.keys()
    assert not planted & NO_INDEXES.keys()
