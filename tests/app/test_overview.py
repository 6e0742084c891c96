"""The overview of all queues. Its counts and ages are right, and a million jobs cost no more to read than one job."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from rq_core.connections.client import Client
from rq_core.connections.transport import PoolTransport
from rq_core.model.limits.limit import Limit
from rq_core.model.recurrence import recurrence
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.engine.plan import Patience, Unsent
from rq_core.protocol.reads import reads
from rq_core.protocol.reads.overview import COMMANDS_MAX, SCOPES_MAX, TICKS_MAX
from rq_core.protocol.reads.queue_load import LateSchedule, QueueOverview
from tests.kit.seed import Seed

MINUTE_MS = 60_000


class CountingTransport(PoolTransport):
    """A transport that records the commands of each round trip to the server."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sent: list[list[str]] = []
        self.most = 0
        """Number of items in the longest reply."""

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        self.sent.append([str(command[0]) for command in commands])
        replies = super().exchange(commands, *how)
        self.most = max(self.most, *map(items, replies), 0)
        return replies


def items(reply: Any) -> int:
    """Return the number of items in a reply, including the items of nested lists."""
    return sum(1 + items(each) for each in reply) if isinstance(reply, list | dict) else 0


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url, real_clock=True) as made:
        yield made


def look(seed: Seed) -> QueueOverview:
    (found,) = seed.client.run(seed.client.calls.reads.overview()).queues
    return found


def age(seed: Seed, job_id: str, minutes: int) -> None:
    """Make a ready job look as if it had been ready for this number of minutes."""
    words = [w for w in str(seed.state(job_id)).split(" ") if not w.startswith("since=")]
    seconds, _ = seed.control.time()
    since = int(seconds) * 1000 - minutes * MINUTE_MS
    seed.control.hset(seed.keys("state"), job_id, " ".join([*words, f"since={since}"]))


def minutes(ms: int | None) -> int | None:
    return None if ms is None else round(ms / MINUTE_MS)


def test_the_overview_counts_jobs_by_state(seed: Seed) -> None:
    seed.enqueue("done")
    seed.complete(*seed.claim().jobs)
    seed.enqueue(*(seed.job(f"dead{n}") for n in range(2)))
    seed.fail(*seed.claim(2).jobs, verdict="final")
    seed.enqueue("running")
    seed.claim()
    seed.cap("tenant", 1)
    seed.enqueue(
        *("a", "b", seed.job("high", priority="high"), seed.job("later", delay_ms=60_000)),
        *(seed.job(f"x{n}", scopes=["tenant=x"]) for n in range(3)),
    )
    seed.cancel("b")

    found = look(seed)

    assert {k: v for k, v in found.ready.items() if v} == {"high": 1, "normal": 2}
    assert found.cancelled_entries == 1
    assert (found.ready_jobs, found.waiting) == (5, 3)
    assert (found.scheduled, found.running, found.dead) == (1, 1, 2)
    assert (found.open_lanes, found.blocked_lanes) == (1, 0)
    assert (found.overdue_ms, found.leases_over) == (0, 0)
    assert found.epoch > 0
    assert found.last_death is not None
    assert (found.last_death.task, found.last_death.reason) == ("t", "final")


def test_the_overview_has_the_number_of_parked_jobs_and_the_age_of_the_oldest(seed: Seed) -> None:
    seed.parked("a")
    assert look(seed).oldest_parked_ms is not None
    seed.control.zadd(seed.keys("parked"), {"a": seed.now - 7 * MINUTE_MS})
    seed.parked("b", "+60000", what="sleep")

    found = look(seed)

    assert (found.parked, minutes(found.oldest_parked_ms), found.scheduled) == (2, 7, 0)
    # Two boxes with one entry each.
    assert found.box_fields == 4
    seed.cancel("a", "b")
    assert look(seed).oldest_parked_ms is None


def test_the_overview_of_an_empty_server_has_no_queue(seed: Seed) -> None:
    found = seed.client.run(seed.client.calls.reads.overview())

    assert (found.queues, found.unreadable) == ((), {})
    assert found.used_memory is not None
    assert found.used_memory > 0


def test_the_age_of_the_oldest_ready_job_ignores_a_cancelled_job(seed: Seed) -> None:
    seed.enqueue("gone", "old", seed.job("older", priority="low"), "young")
    seed.cancel("gone")
    age(seed, "old", 5)
    age(seed, "older", 7)

    found = look(seed)

    assert minutes(found.oldest_ready_ms) == 7
    assert found.oldest_ready_exact


def test_the_age_of_the_oldest_ready_job_is_unknown_if_only_cancelled_jobs_were_read(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b", "c", "old")
    seed.cancel("a", "b", "c")

    found = look(seed)

    assert (found.oldest_ready_ms, found.oldest_ready_exact) == (None, False)


def test_a_job_that_a_full_scope_blocks_does_not_count_as_ready(
    seed: Seed,
) -> None:
    seed.cap("task=t", 1)
    seed.enqueue(*(seed.job(name, scopes=["task=t"]) for name in ("first", "second")))
    seed.claim()
    seed.claim()
    age(seed, "second", 9)

    found = look(seed)
    (scope,) = found.full_scopes

    assert (found.open_lanes, found.blocked_lanes) == (0, 1)
    assert (found.oldest_ready_ms, found.oldest_ready_exact) == (None, True)
    assert (minutes(found.oldest_blocked_ms), found.oldest_blocked_exact) == (9, True)
    assert (scope.scope, scope.limit, scope.holders, scope.blocked_lanes) == (
        "task=t",
        Limit(1),
        1,
        1,
    )
    assert minutes(scope.oldest_blocked_ms) == 9
    assert (scope.blocked_jobs, scope.blocked_jobs_exact) == (1, True)


def test_the_overview_reports_a_queue_that_has_reached_its_own_cap_as_full(seed: Seed) -> None:
    seed.cap("queue", 1)
    seed.enqueue("a", "b")
    seed.claim(1)

    (scope,) = look(seed).full_scopes

    assert (scope.scope, scope.holders) == ("queue", 1)


@pytest.mark.parametrize("cap", ["queue", "task=t"])
def test_the_overview_leaves_out_a_full_cap_for_which_no_job_waits(seed: Seed, cap: str) -> None:
    """Checks ``full_scopes``, the list that `top`, `queues` and the alerts read."""
    seed.cap(cap, 1)
    seed.enqueue(seed.job("a", scopes=[] if cap == "queue" else [cap]))
    seed.claim()

    found = look(seed)

    assert [each.full for each in found.scopes] == [True]
    assert found.full_scopes == ()


def test_the_age_of_the_oldest_ready_job_is_a_lower_bound_if_full_caps_block_many_lanes_of_jobs(
    seed: Seed,
) -> None:
    seed.cap("tenant", 0)
    seed.enqueue(*(seed.job(f"j{n}", scopes=[f"tenant={n}"]) for n in range(20)))
    seed.claim()

    found = look(seed)
    (family,) = found.scopes

    assert (found.blocked_lanes, found.oldest_blocked_exact) == (20, False)
    assert (family.scope, family.blocked_lanes, family.full) == ("tenant", 20, True)
    assert (family.blocked_jobs, family.blocked_jobs_exact) == (4, False)


def test_the_overview_shows_a_cap_but_hides_the_keys_that_the_cap_counts(seed: Seed) -> None:
    """Checks that keys are hidden. A key may be a customer's name."""
    seed.cap("tenant", 5)
    seed.cap("tenant=acme", 1)
    seed.enqueue(*(seed.job(f"j{n}", scopes=["tenant=acme"]) for n in range(3)))
    seed.claim()
    seed.claim()

    found = look(seed)

    assert [each.scope for each in found.scopes] == ["tenant"]
    assert "acme" not in repr(found)


def test_the_overview_first_lists_the_scopes_for_which_jobs_wait(
    seed: Seed,
) -> None:
    for n in range(15):
        seed.cap(f"task=t{n:02}", 1)
    seed.cap("task=zz", 0)
    seed.enqueue(seed.job("waits", task="zz", scopes=["task=zz"]))
    seed.claim()

    found = look(seed)

    assert (len(found.scopes), found.scopes_exact) == (SCOPES_MAX, False)
    assert [each.scope for each in found.full_scopes] == ["task=zz"]


def test_the_overview_shows_overdue_jobs_and_expired_leases(seed: Seed) -> None:
    seed.enqueue(seed.job("late", delay_ms=1), "lost")
    seed.claim()
    now, _ = seed.control.time()
    for key, job_id in (("scheduled", "job|late"), ("leases", "lost")):
        seed.control.zadd(seed.keys(key), {job_id: (int(now) - 120) * 1000})

    found = look(seed)

    assert (minutes(found.overdue_ms), found.leases_over) == (2, 1)


def test_the_overview_shows_schedules_only_of_queues_that_have_had_schedules(seed: Seed) -> None:
    seed.enqueue("a")
    assert (None, None, 0) == schedules_in(look(seed))
    made = [
        Declaration.of(seed.job("-"), recurrence(f"s{n}", every=3600)) for n in range(2 * TICKS_MAX)
    ]
    seed.client.run(seed.calls.schedules.put(seed.queue, made))
    seed.client.run(seed.calls.schedules.change(seed.queue, "s1", "pause"))

    assert (2 * TICKS_MAX - 1, None, 0) == schedules_in(look(seed))
    seed.control.hset(seed.keys("meta"), "schedules_missed", 7)
    seed.control.hset(seed.keys("schedules"), "s2", "damaged")
    for name in ("s2", "s3"):
        seed.control.zadd(seed.keys("ticks"), {name: 1})
    line = seed.control.hget(seed.keys("schedules"), "s3")
    seed.control.hset(seed.keys("schedules"), "s3", re.sub(r"due=\d+", "due=5", str(line)))

    count, late, missed = schedules_in(look(seed))
    assert (2 * TICKS_MAX - 1, "s3", 7) == (count, late and late.name, missed)
    assert late is not None
    assert late.late_ms > 1_700_000_000_000


def schedules_in(found: QueueOverview) -> tuple[int | None, LateSchedule | None, int]:
    return found.schedules, found.late_schedule, found.schedules_missed


def test_the_overview_shows_the_last_activity_of_a_queue(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    assert look(seed).inactive_ms is None
    seed.claim()
    # A worker may have run when the epoch began.
    assert 0 < look(seed).ends_leases_in_ms <= 30_000
    now, _ = seed.control.time()
    of_outage = {"last_activity": (int(now) - 180) * 1000, "no_reap_before": int(now) * 1000 - 1}
    seed.control.hset(seed.keys("meta"), mapping=of_outage)

    found = look(seed)

    assert (minutes(found.inactive_ms), found.ends_leases_in_ms) == (3, 0)


def test_a_damaged_queue_hides_no_other_queue(seed: Seed) -> None:
    seed.enqueue("a")
    seed.of("other").enqueue("b")
    seed.control.delete(seed.keys("dead"))
    seed.control.set(seed.keys("dead"), "x")

    found = seed.client.run(seed.client.calls.reads.overview())

    assert [each.queue for each in found.queues] == ["other"]
    assert "WRONGTYPE" in found.unreadable[seed.queue]


def test_the_error_of_a_key_of_the_wrong_type_names_the_key(
    seed: Seed,
) -> None:
    """Checks the error of a script. Once, the error showed the beginning of the Lua script and not the key's name."""
    seed.enqueue("a")
    seed.control.delete(seed.keys("state"))
    seed.control.set(seed.keys("state"), "x")

    why = seed.client.run(seed.client.calls.reads.overview()).unreadable[seed.queue]

    assert why.startswith(f"key {seed.keys('state')} or {seed.keys('jobs')}: WRONGTYPE")


HOSTILE = "\x1b[31m\n\udcff" + "x" * 1_000_000


def in_meta(name: str, value: str) -> Callable[[Seed], object]:
    return lambda seed: seed.control.hset(seed.keys("meta"), name, value)


def line_of_head(line: str) -> Callable[[Seed], object]:
    """Return a function that replaces the state line of the first ready job by ``line``."""
    return lambda seed: seed.control.hset(seed.keys("state"), "a", line)


CONTAINED: dict[str, Callable[[Seed], object]] = {
    "a number with 5,000 digits": in_meta("backlog_jobs", "9" * 5_000),
    "a number that is none": in_meta("tombstones", "?"),
    "a bound of 0": in_meta("backlog_max_jobs", "0"),
    "a limit that cannot be read": lambda seed: seed.control.hset(
        seed.keys("caps"), "task=t", HOSTILE.encode(errors="surrogateescape")
    ),
    "a limit of a scope that is none": lambda seed: seed.control.hset(
        seed.keys("caps"), HOSTILE.encode(errors="surrogateescape"), "1 version=1 from=code"
    ),
    "a job in no state": line_of_head("lost in space"),
    "a job since no time": line_of_head("ready task=t seq=1 since=\u00b2"),
    "a job since 5,000 digits": line_of_head(f"ready task=t seq=1 since={'9' * 5_000}"),
}
"""Each damages one field: a fact of the queue, a limit, or a field of a job. The overview must still show all other
fields of the queue."""


@pytest.mark.parametrize("how", CONTAINED)
def test_a_damaged_field_hides_no_other_field_of_its_queue(seed: Seed, how: str) -> None:
    seed.enqueue("a", "b")

    CONTAINED[how](seed)

    found = look(seed)
    assert found.ready_jobs == 2
    assert found.scopes == ()
    assert found.backlog_ratio >= 0
    assert HOSTILE[:5] not in repr(found)


def test_the_age_of_the_oldest_ready_job_is_a_lower_bound_if_a_job_is_unreadable(
    seed: Seed,
) -> None:
    seed.enqueue("a", "b", "c")
    line_of_head("lost in space")(seed)
    age(seed, "b", 5)

    found = look(seed)

    assert (minutes(found.oldest_ready_ms), found.oldest_ready_exact) == (5, False)


DAMAGED: dict[str, Callable[[Seed], object]] = {
    "due in all eternity": lambda seed: seed.control.zadd(
        seed.keys("scheduled"), {"job|x": float("inf")}
    ),
    "a blocked lane without its scope": lambda seed: seed.control.zadd(
        seed.keys("blocked"), {"no-lane": 0}
    ),
}
"""Damages that make a whole queue unreadable."""


@pytest.mark.parametrize("how", DAMAGED)
def test_the_overview_reports_a_damaged_queue_as_unreadable(seed: Seed, how: str) -> None:
    seed.enqueue("a")
    seed.of("other").enqueue("b")

    DAMAGED[how](seed)

    found = seed.client.run(seed.client.calls.reads.overview())
    assert [each.queue for each in found.queues] == ["other"]
    assert len(found.unreadable[seed.queue]) < 500


def test_invalid_names_in_the_list_of_queues_hide_no_queue(seed: Seed) -> None:
    seed.enqueue("a")
    for name in (b"", b"\xff\x1b[31m", HOSTILE.encode(errors="surrogateescape")):
        seed.control.sadd("rqc:queues", name)

    found = seed.client.run(seed.client.calls.reads.overview())

    assert [each.queue for each in found.queues] == [seed.queue]
    assert "3 entries that can name no queue" in found.strays
    assert found.strays.isprintable()
    assert len(found.strays) < 800


def test_many_invalid_names_in_the_list_of_queues_push_no_queue_out_of_the_overview(
    seed: Seed,
) -> None:
    seed.enqueue("a")
    seed.control.sadd("rqc:queues", *(f"!{n}" for n in range(2_000)))

    found = seed.client.run(seed.client.calls.reads.overview())

    assert [each.queue for each in found.queues] == [seed.queue]
    assert (found.unreadable, found.queues_left_out) == ({}, 0)
    assert "2,000 entries" in found.strays
    assert len(found.strays) < 800


def test_the_overview_counts_the_queues_that_it_leaves_out(
    seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "QUEUES_MAX", 2)
    for queue in ("b", "c", "a", "d"):
        seed.of(queue).enqueue(f"job-{queue}")

    found = seed.client.run(seed.client.calls.reads.overview())

    assert [each.queue for each in found.queues] == ["a", "b"]
    assert found.queues_left_out == 2


class Shard(PoolTransport):
    """A transport to a shard that cannot reach the server of one queue."""

    def exchange(self, commands: Sequence[Sequence[Any]], *how: Any) -> list[Any]:
        replies = super().exchange(commands, *how)
        away = "{other}"
        return [
            Unsent("no connection") if any(away in str(word) for word in command) else reply
            for command, reply in zip(commands, replies, strict=True)
        ]


def test_an_unreachable_shard_hides_only_its_queues(redis_url: str) -> None:
    with Seed(redis_url, real_clock=True) as seed:
        seed.enqueue("a")
        seed.of("other").enqueue("b")
    with Client(redis_url, transport=Shard(redis_url), patience=Patience(unsent=0.0)) as client:
        found = client.run(client.calls.reads.overview())

    assert [each.queue for each in found.queues] == ["q"]
    assert found.unreadable == {"other": "no connection"}


CHEAP = {
    "LLEN", "LRANGE", "ZCARD", "HLEN", "HGETALL", "HSCAN", "ZRANGE", "ZRANGEBYSCORE", "ZRANGEBYLEX", "ZLEXCOUNT",
    "ZCOUNT", "HMGET", "TIME", "EVAL_RO", "XLEN",
}  # fmt: skip
"""Commands that the overview may send. They stay cheap however many jobs or lanes there are: the overview gives each
range a LIMIT, and a count takes at most logarithmic time."""


@pytest.mark.parametrize("lanes", [3, 2_000])
def test_the_overview_takes_four_round_trips_however_many_jobs_wait(
    redis_url: str, lanes: int
) -> None:
    queues = ("q", "r", "s")
    with Seed(redis_url, real_clock=True) as seed:
        for queue in queues:
            of = seed.of(queue)
            for n in range(15):
                of.cap(f"task=t{n}", 0)
            of.cap("tenant", 0)
            made = [Declaration.of(of.job("-"), recurrence(f"s{n}", every=3600)) for n in range(20)]
            of.client.run(of.calls.schedules.put(queue, made))
            of.enqueue(*(of.job(f"{queue}{n}", scopes=[f"tenant={n}"]) for n in range(lanes)))
            of.enqueue(*(of.job(f"{queue}p{n}", priority="high") for n in range(lanes)))
            of.enqueue(*(of.job(f"{queue}l{n}", scopes=["team=one"]) for n in range(lanes)))
            of.claim(1)
        transport = CountingTransport(redis_url)
        with Client(redis_url, transport=transport) as client:
            found = client.run(client.calls.reads.overview())

    assert [each.ready["high"] for each in found.queues] == [lanes - 1] * len(queues)
    first, *rest = transport.sent
    assert first == ["SMEMBERS", "INFO"]
    assert len(rest) == 3
    assert {name for trip in rest for name in trip} <= CHEAP
    assert sum(map(len, rest)) <= COMMANDS_MAX * len(queues)
    # Facts, limits and the jobs that are looked at; never what grows with jobs or lanes.
    assert transport.most <= 100
