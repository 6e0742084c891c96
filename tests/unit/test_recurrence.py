"""Due times of schedules: the instants of cron expressions and intervals, and the rules that are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rq_core.errors import InvalidOption
from rq_core.model import recurrence as module
from rq_core.model.recurrence import (
    NAME_MAX,
    PASSED_MAX,
    Passed,
    Recurrence,
    check_cron,
    from_json,
    recurrence,
)
from tests.rigs.dst_oracle import EXPRESSIONS, compare, of_library

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def ms(text: str, zone: str = "UTC") -> int:
    """Return the Unix time in ms of a wall time."""
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1000)


def walls(rule: Recurrence, after: str, count: int) -> list[str]:
    """Return the next ``count`` instants after a wall time, as wall times."""
    zone = ZoneInfo(rule.tz)
    found = []
    for instant, _ in zip(rule.instants(ms(after, rule.tz)), range(count), strict=False):
        found.append(f"{datetime.fromtimestamp(instant / 1000, zone):%Y-%m-%d %H:%M}")
    return found


# What the words mean.


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 2 * * *", ["2026-11-25 02:00", "2026-11-26 02:00"]),
        ("@daily", ["2026-11-25 00:00", "2026-11-26 00:00"]),
        ("@hourly", ["2026-11-24 13:00", "2026-11-24 14:00"]),
        ("0 9 * * mon-fri", ["2026-11-25 09:00", "2026-11-26 09:00"]),
        ("0 9 1,15 * MON", ["2026-11-30 09:00", "2026-12-01 09:00"]),
        ("0 9 L * *", ["2026-11-30 09:00", "2026-12-31 09:00"]),
        ("0 0 29 2 *", ["2028-02-29 00:00", "2032-02-29 00:00"]),
    ],
)
def test_a_cron_expression_has_the_expected_instants(cron: str, expected: list[str]) -> None:
    assert walls(recurrence("n", cron=cron), "2026-11-24 12:30", 2) == expected


def test_several_instants_within_the_skipped_time_fire_once_when_the_skipped_time_ends() -> None:
    rule = recurrence("n", cron="0,30 2 * * *", tz="Europe/Berlin")

    found = walls(rule, "2026-03-28 12:00", 3)

    assert found == ["2026-03-29 03:00", "2026-03-30 02:00", "2026-03-30 02:30"]


def test_a_daily_instant_within_the_skipped_time_fires_when_the_skipped_time_ends() -> None:
    rule = recurrence("n", cron="30 2 * * *", tz="Europe/Berlin")

    found = walls(rule, "2026-03-28 12:00", 2)

    assert found == ["2026-03-29 03:00", "2026-03-30 02:30"]


def test_a_wall_time_that_comes_twice_fires_only_the_first_time() -> None:
    rule = recurrence("n", cron="30 2 * * *", tz="Europe/Berlin")
    first = ms("2026-10-25T02:30:00", "Europe/Berlin")

    assert rule.next_after(first - 1) == first
    # Also for one who asks between the two.
    for later in (first, first + MINUTE, first + 50 * MINUTE, first + HOUR):
        assert rule.next_after(later) == first + 25 * HOUR


def test_a_cron_expression_with_a_wildcard_minute_follows_elapsed_time() -> None:
    rule = recurrence("n", cron="*/10 * * * *", tz="Europe/Berlin")
    start = ms("2026-10-25 00:00", "Europe/Berlin")

    found = [at for at, _ in zip(rule.instants(start - 1), range(200), strict=False)]

    assert found == [start + k * 10 * MINUTE for k in range(200)]


def test_a_wall_time_that_comes_twice_is_noticed_though_the_instants_around_it_have_equal_offsets() -> (
    None
):
    """Two instants a year apart have equal UTC offsets. Between them, a clock change makes one wall time come twice."""
    rule = recurrence("n", cron="*/30 1 25 10 *", tz="Europe/London")
    first = ms("2026-10-25 01:30", "Europe/London")

    found = [at for at, _ in zip(rule.instants(first), range(3), strict=False)]

    assert found[:2] == [first + 30 * MINUTE, first + HOUR]
    assert found[2] == ms("2027-10-25 01:00", "Europe/London")


def test_the_phase_of_an_interval_depends_on_the_name_of_its_schedule() -> None:
    beat, other = recurrence("beat", every=10), recurrence("other", every=10)
    now = ms("2026-11-25")

    (first, second), (third, _) = (
        [at for at, _ in zip(each.instants(now), range(2), strict=False)] for each in (beat, other)
    )

    assert second - first == 10_000
    assert first % 10_000 == beat.phase_ms
    assert first != third
    assert beat == recurrence("beat", every=timedelta(seconds=10))


def test_the_option_spread_delays_each_schedule_by_a_constant_time_below_the_spread() -> None:
    shifts = [recurrence(f"t.{k}", cron="0 8 * * *", spread=900).shift_ms for k in range(2000)]

    assert shifts == [
        recurrence(f"t.{k}", cron="0 8 * * *", spread=900).shift_ms for k in range(2000)
    ]
    assert 0 <= min(shifts) < 20_000
    assert 880_000 < max(shifts) < 900_000
    assert recurrence("n", cron="0 8 * * *").shift_ms == 0


# What is to be done about instants that have passed.


def test_of_several_instants_that_have_passed_only_the_latest_is_run() -> None:
    rule = recurrence("n", cron="0 * * * *")
    at = ms("2026-11-25 10:00")

    assert rule.judge(at, at - 1) == Passed(None, 0, at)
    assert rule.judge(at, at) == Passed(at, 0, at + HOUR)
    assert rule.judge(at, at + 3 * HOUR + 1) == Passed(at + 3 * HOUR, 3, at + 4 * HOUR)


def test_an_instant_later_than_the_grace_is_missed() -> None:
    rule = recurrence("n", cron="0 * * * *", catch_up="skip")
    at = ms("2026-11-25 10:00")

    assert rule.judge(at, at + MINUTE) == Passed(at, 0, at + HOUR)
    assert rule.judge(at, at + MINUTE + 1) == Passed(None, 1, at + HOUR)
    assert rule.judge(at, at + HOUR + 1) == Passed(at + HOUR, 1, at + 2 * HOUR)
    assert rule.judge(at, at + HOUR + MINUTE + 1) == Passed(None, 2, at + 2 * HOUR)


def test_the_lateness_of_an_instant_is_counted_from_its_due_time() -> None:
    rule = recurrence("n", cron="0 * * * *", spread=1800, grace=1)
    at, shift = ms("2026-11-25 10:00"), rule.shift_ms

    assert shift > 1000
    assert rule.judge(at, at + shift - 1) == Passed(None, 0, at)
    assert rule.judge(at, at + shift + 1000) == Passed(at, 0, at + HOUR)
    assert rule.judge(at, at + shift + 1001) == Passed(None, 1, at + HOUR)


def test_instants_that_have_passed_are_counted_up_to_a_limit() -> None:
    at = ms("2026-01-01")

    assert recurrence("n", cron="* * * * *").passed(at, at + DAY) == 1440
    assert recurrence("n", cron="* * * * *").passed(at, at + 30 * DAY) == PASSED_MAX
    assert recurrence("n", every=1).passed(at, at + DAY) == PASSED_MAX
    assert recurrence("n", every=60).passed(at, at + HOUR) == 60


RULES = st.sampled_from(
    [
        recurrence("a", every=7), recurrence("b", every=3600.5),
        recurrence("c", cron="*/7 * * * *", tz="Europe/Berlin"),
        recurrence("d", cron="0 2 * * *", tz="America/New_York"),
        recurrence("e", cron="30 1 * * 0", tz="Europe/London", spread=300),
        recurrence("f", cron="0 0 1 * *", tz="Australia/Lord_Howe"),
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(RULES, st.integers(ms("2026-01-01"), ms("2027-01-01")), st.integers(0, 3 * DAY))
def test_the_method_judge_counts_the_same_instants_as_a_loop_over_all_instants(
    rule: Recurrence, start: int, after: int
) -> None:
    expected = rule.next_after(start)
    assert expected is not None
    now = expected + after
    passed = []
    for instant in rule.instants(start):
        if instant + rule.shift_ms > now or len(passed) > PASSED_MAX + 1:
            break
        passed.append(instant)

    found = rule.judge(expected, now)

    if len(passed) > PASSED_MAX:
        assert found.missed == PASSED_MAX
    elif passed:
        assert found == Passed(passed[-1], len(passed) - 1, rule.next_after(passed[-1]))
    else:
        assert found == Passed(None, 0, expected)


# Daylight saving.


@pytest.mark.parametrize(
    "zone",
    [
        "Europe/Berlin", "America/Havana", "America/Sao_Paulo", "Australia/Lord_Howe", "Pacific/Apia",
        "Africa/Casablanca",
    ],
)  # fmt: skip
def test_the_instants_of_a_rule_equal_those_of_a_search_through_all_minutes(
    zone: str,
) -> None:
    """A short form of `python -m tests.rigs.dst_oracle`.

    Havana and Sao Paulo change their clocks at midnight. Lord Howe changes them by half an hour. Samoa omitted a day in
    2011.
    """
    compared = list(compare(zone, EXPRESSIONS, (2011, 2012)))

    assert len(compared) >= 24
    assert [str(each) for each in compared if each] == []


@pytest.mark.parametrize(
    ("zone", "expression"),
    [("Australia/Lord_Howe", "0 */2 * * *"), ("America/Havana", "*/30 */2 * * SUN")],
)
def test_the_library_cronsim_alone_computes_wrong_instants_around_clock_changes(
    zone: str, expression: str
) -> None:
    """CronSim is therefore used only between clock changes. If a new version fails this test, it may be right
    everywhere."""
    assert any(compare(zone, [expression], (2011, 2012), of_library))


def test_schedules_with_the_same_expression_share_the_count_of_their_missed_instants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The schedules fire every minute, and the outage lasted a week. Thousands of schedules must share one count.

    To count the missed instants once takes a fifth of a second.
    """
    asked: list[int] = []
    after = module._cron_after

    def counted(cron: str, tz: str, minute_ms: int) -> int | None:
        asked.append(minute_ms)
        return after(cron, tz, minute_ms)

    monkeypatch.setattr(module, "_cron_after", counted)
    start, now = ms("2031-01-01"), ms("2031-01-08")
    rules = [recurrence(f"n-{n}", cron="* * * * *", tz="Europe/Berlin") for n in range(20)]

    found = {rule.judge(start, now) for rule in rules}

    assert {PASSED_MAX} == {each.missed for each in found}
    assert len(asked) < 1.2 * PASSED_MAX


# What is refused.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "cron=None is not valid: must be given, or every"),
        ({"cron": "0 2 * * *", "every": 5}, "does not go with cron"),
        ({"every": 5, "tz": "UTC"}, "does not go with every"),
        ({"every": 0.9}, "every=0.9 is not valid: must be seconds"),
        ({"every": 0}, "every=0 is not valid"),
        ({"every": True}, "every=True is not valid"),
        ({"every": "10"}, "every='10' is not valid"),
        ({"every": timedelta(milliseconds=999)}, "every="),
        ({"cron": ""}, "must have five fields"),
        ({"cron": 5}, "must have five fields"),
        ({"cron": "0 2 * *"}, "it has 4"),
        ({"cron": "0 0 2 * * *"}, "it has 6"),
        ({"cron": "@reboot"}, "must have five fields (minute hour day month weekday), or be one of @yearly"),
        ({"cron": "60 2 * * *"}, "has the minute '60', which must be 0 to 59"),
        ({"cron": "0 24 * * *"}, "has the hour '24', which must be 0 to 23"),
        ({"cron": "0 2 * * MOON"}, "has the day-of-week 'MOON'"),
        ({"cron": "0 2 30 2 *"}, "has the day-of-month '30', which must be"),
        ({"cron": "0 2 */31 2 MON#5"}, "must fire some day: no date matches it"),
        ({"cron": "0 2 * * MON#1/2"}, "has the day-of-week 'MON#1/2', which must be 0 to 7"),
        ({"cron": "0 2 * * *" + ",1" * 200}, "must have five fields"),
        ({"cron": "0 2 * * *", "tz": "Mars/Olympus"}, "if the name is right, `pip install tzdata`"),
        ({"cron": "0 2 * * *", "tz": "../etc/passwd"}, "must be a time zone"),
        ({"cron": "0 2 * * *", "tz": ""}, "must be a time zone"),
        ({"cron": "0 2 * * *", "tz": UTC}, "must be a time zone"),
        ({"cron": "0 2 * * *", "tz": "+02:00"}, "write Etc/GMT-2, whose sign is the other way round"),
        ({"cron": "0 2 * * *", "tz": "UTC-5"}, "write Etc/GMT+5"),
        ({"cron": "0 2 * * *", "tz": "gmt+0200"}, "write Etc/GMT-2"),
        ({"cron": "0 2 * * *", "tz": "+00:00"}, "write UTC"),
        ({"cron": "0 2 * * *", "tz": "Z"}, "write UTC"),
        ({"cron": "0 2 * * *", "tz": "+05:30"}, "name a place that has it, such as Asia/Kolkata"),
        ({"cron": "0 2 * * *", "tz": "-13"}, "name a place that has it"),
        ({"cron": "0 2 * * *", "tz": "+02:00"}, "not an offset, which does not say when the clock changes"),
        ({"every": 5, "overlap": "never"}, "must be one of skip, allow, queue, replace"),
        ({"every": 5, "catch_up": "all"}, "must be one of latest, skip"),
        ({"every": 5, "grace": -1}, "grace=-1 is not valid"),
        ({"every": 5, "spread": -1}, "spread=-1 is not valid"),
    ],
)  # fmt: skip
def test_the_error_of_an_invalid_rule_says_what_is_valid(options: Any, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        recurrence("n", **options)

    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "a" * (NAME_MAX + 1), None, 5, "a\n"])
def test_a_name_that_cannot_be_part_of_an_id_is_refused(name: Any) -> None:
    with pytest.raises(InvalidOption, match="must be 1 to 100 of the characters"):
        recurrence(name, every=5)


@settings(max_examples=300, deadline=None)
@given(st.text("0123456789*/,-#LWMONJA @", max_size=14))
def test_any_text_is_either_a_cron_expression_or_refused(text: str) -> None:
    try:
        said = check_cron(text)
    except InvalidOption:
        return
    assert check_cron(said) == said
    assert recurrence("n", cron=text).next_after(0) is not None


# As text.


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (
            recurrence("n", cron="0  2 * * *", tz="Europe/Berlin", grace=3600),
            '{"cron":"0 2 * * *","tz":"Europe/Berlin","overlap":"skip","catch_up":"latest","grace_ms":3600000}',
        ),
        (
            recurrence("n", every=10, overlap="queue"),
            '{"every_ms":10000,"overlap":"queue","catch_up":"latest"}',
        ),
        (
            recurrence("n", cron="@daily", spread=1.5, catch_up="skip"),
            '{"cron":"@daily","tz":"UTC","spread_ms":1500,"overlap":"skip","catch_up":"skip","grace_ms":60000}',
        ),
    ],
)
def test_a_rule_that_was_written_as_json_is_read_back_unchanged(
    rule: Recurrence, text: str
) -> None:
    assert rule.to_json() == text
    assert from_json("n", text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"every_ms":"x"}', '{"every_ms":5000,"holidays":true}', '{"cron":"x"}'],
)
def test_json_that_is_not_a_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        from_json("n", text)
