"""The doctor finds entries of breakers that were altered in Redis, and mends those that the log knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rq_core.model.job import Claim
from tests.kit.doctor import look, mend
from tests.kit.seed import Seed

FAMILY = "ask.host@60s:failures"
SCOPE = f"{FAMILY}=h"
COOLDOWN = 30_000
YEAR_MS = 365 * 86_400_000


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url) as made:
        made.cap(FAMILY, f"3/60000ms/{COOLDOWN}")
        made.enqueue(*(f"j-{n}" for n in range(6)), scopes=[SCOPE], attempts=100)
        yield made


def fail(seed: Seed, *claims: Claim) -> None:
    for claim in claims:
        seed.fail(claim, delay_ms=1)


def pause(seed: Seed) -> None:
    fail(seed, *seed.claim(3).jobs)


def probe(seed: Seed) -> Claim:
    pause(seed)
    seed.live(COOLDOWN)
    (claim,) = seed.claim().jobs
    return claim


def entry(seed: Seed) -> str | None:
    found: str | None = seed.snapshot()["rates"].get(SCOPE)
    return found


def alter(seed: Seed, change: Callable[[str], str]) -> str:
    """Alter the entry, and return what it was."""
    was = entry(seed)
    assert was is not None
    seed.control.hset(seed.keys("rates"), SCOPE, change(was))
    assert entry(seed) != was
    return was


def assert_found_and_mended(seed: Seed, says: str) -> None:
    found = [f for f in look(seed) if "rates" in f.keys]
    assert [says in f.says for f in found] == [True], [f.says for f in found]
    assert mend(seed) == []
    assert look(seed) == []


def facts(text: str | None) -> str | None:
    """Return an entry without the time at which it was written."""
    return text and text.partition(" ")[2]


ALTERED: dict[str, tuple[Callable[[Seed], object], Callable[[str], str], str]] = {
    "unreadable": (pause, lambda _: "rubbish", "the entry of the breaker is unreadable"),
    "years ahead": (pause, lambda e: f"{e.split()[0]} until={4 * 10**12}", "by the log it is paused"),
    "a pause is shorter": (pause, lambda e: f"{e[:-5]}20000", "by the log it is paused until"),
    "an operator was named": (pause, lambda e: f"{e} by=eve", "by the log it is paused until"),
    "no pause": (pause, lambda e: f"{e.split()[0]} failed={e.split()[0]}", "by the log it is paused"),
    "no probe": (probe, lambda e: e.partition(" probe=")[0], "its probe is missing"),
}  # fmt: skip


@pytest.mark.parametrize("how", ALTERED)
def test_the_doctor_restores_an_altered_entry_of_a_breaker_from_the_log(
    seed: Seed, how: str
) -> None:
    begin, change, says = ALTERED[how]
    begin(seed)
    assert look(seed) == []
    was = alter(seed, change)

    assert_found_and_mended(seed, says)

    assert facts(entry(seed)) == facts(was)


def test_the_doctor_restores_a_removed_entry_of_a_breaker(seed: Seed) -> None:
    pause(seed)
    was = entry(seed)
    seed.control.hdel(seed.keys("rates"), SCOPE)
    seed.control.zrem(seed.keys("expiring"), f"rate|{SCOPE}")

    assert_found_and_mended(seed, "by the log it is paused until")

    assert facts(entry(seed)) == facts(was)
    assert seed.claim().jobs == ()


@pytest.mark.parametrize("failed", ["{0}", "{0},{1},{1}"])
def test_the_doctor_corrects_the_number_of_failures_of_a_breaker(seed: Seed, failed: str) -> None:
    first, second, _ = seed.claim(3).jobs
    fail(seed, first)
    seed.live(10)
    fail(seed, second)
    assert look(seed) == []
    was = alter(
        seed, lambda e: f"{e.split()[0]} failed={failed.format(*e.split('=')[1].split(','))}"
    )

    assert_found_and_mended(seed, "by the log it is open, with 2 failures in its window")

    assert facts(entry(seed)) == facts(was)


def test_the_doctor_opens_a_scope_that_is_paused_without_a_cause(seed: Seed) -> None:
    seed.control.hset(seed.keys("rates"), SCOPE, f"{seed.now} until={seed.now + YEAR_MS}")
    seed.control.zadd(seed.keys("expiring"), {f"rate|{SCOPE}": seed.now + 2 * YEAR_MS})
    assert seed.claim().jobs == ()
    seed.enqueue("more", scopes=[SCOPE])

    assert_found_and_mended(seed, "by the log it is open, with 0 failures in its window")

    seed.live(10_000)
    assert len(seed.claim().jobs) == 7


def test_the_doctor_removes_a_probe_whose_job_does_not_run(seed: Seed) -> None:
    pause(seed)
    seed.live(COOLDOWN)
    alter(seed, lambda e: f"{e} probe=gone")

    assert_found_and_mended(seed, "its probe 'gone' does not run")

    assert len(seed.claim().jobs) == 1


@pytest.mark.parametrize("until", ["{}", "{} by=ada"])
def test_without_a_log_the_doctor_reports_a_long_pause_only_if_no_operator_made_it(
    seed: Seed, until: str
) -> None:
    pause(seed)
    seed.control.delete(seed.keys("outbox"))
    far_ms = seed.now + YEAR_MS
    alter(seed, lambda e: f"{e.split()[0]} until={until.format(far_ms)}")

    found = [f for f in look(seed) if "rates" in f.keys]

    assert [f.says for f in found if "longer than a handler" in f.says] == [f.says for f in found]
    assert len(found) == ("by=" not in until)


def test_the_doctor_adds_the_missing_event_that_ends_the_pause_of_a_scope(seed: Seed) -> None:
    pause(seed)
    assert seed.claim().jobs == ()
    seed.control.zrem(seed.keys("scheduled"), f"rate|{SCOPE}")

    assert any("no event would open the lane" in f.says for f in look(seed))
    assert mend(seed) == []

    assert seed.claim().jobs == ()
    seed.live(COOLDOWN)
    assert len(seed.claim().jobs) == 1


# What the doctor does not report.


def test_the_doctor_reports_nothing_if_the_limit_of_a_breaker_was_removed_while_a_probe_ran(
    seed: Seed,
) -> None:
    claim = probe(seed)
    seed.cap(FAMILY, "none")
    seed.complete(claim)
    assert look(seed) == []
    seed.cap(FAMILY, f"3/60000ms/{COOLDOWN}")

    assert look(seed) == []


@pytest.mark.parametrize("limit", ["none", "0"])
def test_the_doctor_reports_nothing_if_the_limit_of_a_breaker_was_removed_after_failures(
    seed: Seed, limit: str
) -> None:
    fail(seed, *seed.claim(2).jobs)
    seed.cap(FAMILY, limit)

    assert look(seed) == []


def test_the_doctor_reports_nothing_about_a_breaker_after_the_clock_went_back(seed: Seed) -> None:
    pause(seed)
    seed.live(-5_000)
    seed.claim()

    assert look(seed) == []


def test_the_doctor_reports_nothing_after_an_operator_paused_and_resumed_a_scope(
    seed: Seed,
) -> None:
    pauses = seed.client.calls.pauses
    seed.client.run(pauses.pause(seed.queue, SCOPE, by="ada"))
    assert look(seed) == []
    seed.client.run(pauses.resume(seed.queue, SCOPE, by="ada"))
    assert look(seed) == []
    pause(seed)
    assert look(seed) == []


@pytest.mark.parametrize("scope", [SCOPE, "other@1s=h"])
def test_the_doctor_reads_the_pause_of_an_operator_with_the_longest_name(
    seed: Seed, scope: str
) -> None:
    seed.cap("other@1s", "1/1000ms/1")
    pauses = seed.client.calls.pauses
    seed.client.run(pauses.pause(seed.queue, scope, by="a" * 128))

    assert look(seed) == []


def test_the_doctor_reports_nothing_if_a_probe_loses_its_lease(seed: Seed) -> None:
    probe(seed)
    seed.advance(120_000)
    seed.claim()

    assert look(seed) == []
