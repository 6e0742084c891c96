"""Settings of a queue that a client changed without the scripts. The doctor finds the changes from the log."""

from collections.abc import Callable, Iterator

import pytest

from rq_core.doctor import Finding, Kind
from rq_core.doctor.settings_check import SHOWN_MAX
from rq_core.model.settings import FLAGS, SETTINGS
from tests.kit.busy import Busy
from tests.kit.doctor import look, mend
from tests.kit.seed import Seed


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    """Yield a seed with a filled queue, on one engine. The doctor's findings do not depend on the engine."""
    with Seed(valkey_url) as made:
        Busy(made)
        yield made


def only(found: list[Finding], kind: Kind) -> str:
    (finding,) = found
    assert finding.kind is kind
    return finding.says


@pytest.mark.parametrize("value", ["1", "garbage", "9" * 5_000])
@pytest.mark.parametrize("name", [*SETTINGS, *FLAGS])
def test_the_doctor_reports_a_setting_that_differs_from_the_log(
    seed: Seed, name: str, value: str
) -> None:
    seed.control.hset(seed.keys("meta"), name, value)

    found = [each for each in look(seed) if each.kind is Kind.LOG_DIFFERS]

    says = only(found, Kind.LOG_DIFFERS)
    assert says.startswith(f"{name} is '{value[:20]}")
    assert len(says) < 4 * SHOWN_MAX + 100


def test_the_doctor_reports_no_finding_for_a_setting_that_was_changed_by_a_call(seed: Seed) -> None:
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"lease_ms": 5_000}))
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"paused": 1}))
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"paused": 0}))

    assert look(seed) == []


def test_the_doctor_reports_a_pause_that_was_ended_by_hand(seed: Seed) -> None:
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"paused": 1}))
    seed.control.hset(seed.keys("meta"), "paused", "0")

    assert "paused is '0' in `meta`, '1' by the log" in only(look(seed), Kind.LOG_DIFFERS)
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"paused": 1}))
    assert look(seed) == []


def test_the_doctor_does_not_judge_a_setting_whose_event_was_trimmed(seed: Seed) -> None:
    seed.control.xtrim(seed.keys("outbox"), maxlen=1)
    seed.control.hset(seed.keys("meta"), "paused", "1")

    assert [each for each in look(seed) if "paused" in each.says] == []


def test_settings_are_not_compared_with_a_log_that_has_a_gap(seed: Seed) -> None:
    seed.enqueue("one-more")
    entries = [entry for entry, _ in seed.control.xrange(seed.keys("outbox"))]
    seed.control.xdel(seed.keys("outbox"), entries[-2])
    seed.control.hset(seed.keys("meta"), "paused", "1")

    assert [each for each in look(seed) if "paused" in each.says] == []


def test_the_doctor_reports_an_epoch_that_differs_from_the_last_event(seed: Seed) -> None:
    epoch = seed.control.hget(seed.keys("meta"), "epoch")
    seed.control.hset(seed.keys("meta"), "epoch", "5")

    assert f"the last event is of epoch {epoch}" in only(look(seed), Kind.LOG_DIFFERS)


@pytest.mark.parametrize("limit", ["9", "none"])
def test_the_doctor_reports_a_limit_that_was_changed_by_hand(seed: Seed, limit: str) -> None:
    seed.cap("tenant", 3)
    stored = seed.control.hget(seed.keys("caps"), "tenant")
    seed.control.hset(seed.keys("caps"), "tenant", f"{limit} {stored.partition(' ')[2]}")

    says = [each.says for each in look(seed) if each.kind is Kind.LOG_DIFFERS]

    assert f"the limit of tenant is {limit} in `caps`, 3 by the log: a client changed it" in says[0]


ROWS: dict[str, Callable[[Seed], object]] = {
    "w-lie": lambda seed: seed.control.hset(
        seed.keys("workers"), "w-lie", '5 {"host":1}' + " " * 10_000
    ),
    "code|lie": lambda seed: seed.control.hset(seed.keys("workers"), "code|lie", "[" * 10_000),
    "t-lie": lambda seed: seed.control.hset(seed.keys("tasks"), "t-lie", "[" * 10_000),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_doctor_reports_an_unreadable_row_of_a_setting(seed: Seed, name: str) -> None:
    ROWS[name](seed)

    says = only(look(seed), Kind.UNREADABLE)

    assert name in says
    assert len(says) < 4 * SHOWN_MAX


def test_repair_leaves_no_finding_about_settings_after_the_key_meta_was_lost(seed: Seed) -> None:
    seed.client.run(seed.client.calls.admin.configure(seed.queue, {"paused": 1, "lease_ms": 5_000}))
    seed.control.delete(seed.keys("meta"))

    assert mend(seed) == []
