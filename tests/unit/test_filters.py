"""Filters: their text form, which jobs match them, and which filters are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rq_core import Filter, InvalidName, InvalidOption, Priority, State
from rq_core.model.filters.filter_text import terms_of, text_of
from rq_core.model.state_line import read_state_line

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)

EVERY_TERM = Filter(
    queue="mail",
    task="send",
    states=("ready", "dead"),
    priority=Priority.LOW,
    lane="3+tenant=acme",
    scope="tenant=acme",
    worker="w-1",
    older=timedelta(hours=2),
    failed=3,
    between=(NOW - timedelta(hours=1), NOW),
    headers={"request": 'a "b" \\c'},
    args={"to": "a@b c", "n": 3, "list": [1, {"x": None}]},
)


def test_the_text_of_a_filter_is_read_back_as_the_same_filter() -> None:
    text = str(EVERY_TERM)

    assert text == (
        "queue:mail task:send state:ready,dead priority:low lane:3+tenant=acme scope:tenant=acme worker:w-1"
        " older:2h failed:3 since:2026-11-21T11:00:00.000Z until:2026-11-21T12:00:00.000Z"
        r' header:"request=a \"b\" \\c" arg:list=[1,{"x":null}] arg:n=3 arg:"to=a@b c"'
    )
    assert Filter.parse(text) == EVERY_TERM
    assert hash(Filter.parse(text)) == hash(EVERY_TERM)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(st.sampled_from(["queue", "arg", "header"]), texts), max_size=5))
def test_each_value_in_the_text_of_a_filter_is_read_back_unchanged(
    terms: list[tuple[str, str]],
) -> None:
    assert terms == [(term.word, term.value) for term in terms_of(text_of(terms))]


@given(
    st.builds(
        Filter,
        queue=st.just("q"),
        older=st.none() | st.floats(0, 1e7),
        failed=st.none() | st.integers(0, 1000),
        lane=st.none() | texts,
        headers=st.dictionaries(st.from_regex("[a-z]{1,5}", fullmatch=True), texts, max_size=3),
        args=st.dictionaries(
            st.from_regex("[a-z]{1,5}", fullmatch=True),
            texts | st.integers() | st.booleans() | st.none(),
            max_size=3,
        ),
        between=st.tuples(st.none() | st.just(NOW), st.none() | st.just(NOW + timedelta(hours=1))),
    )
)
def test_any_filter_equals_the_filter_parsed_from_its_text(made: Filter) -> None:
    assert made == Filter.parse(str(made))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("since:10:00", (datetime(2026, 11, 21, 10, tzinfo=UTC), None)),
        ('until:"10m ago"', (None, NOW - timedelta(minutes=10))),
        ('since:"2026-11-20 10:00 UTC"', (datetime(2026, 11, 20, 10, tzinfo=UTC), None)),
        (f"since:{NOW_MS}", (NOW, None)),
    ],
)
def test_a_time_in_a_filter_may_be_a_clock_time_a_date_an_age_or_unix_milliseconds(
    text: str, expected: Any
) -> None:
    assert expected == Filter.parse(f"queue:mail {text}", now=NOW).between


def job(line: str) -> Any:
    return read_state_line("mail", "j", line)


WAITS = f"ready task=send priority=high lane=1+tenant=acme failed=2 claim=2 seq=7 since={NOW_MS}"
SOON = f"scheduled task=send due={NOW_MS + 60_000} since={NOW_MS - 5_000}"
RUNS = f"running task=send claim=1 fence=1-1 by=w-1 seq=7 since={NOW_MS}"


@pytest.mark.parametrize(
    ("terms", "line", "expected"),
    [
        ({}, WAITS, True),
        ({"task": "send"}, WAITS, True),
        ({"task": "sen"}, WAITS, False),
        ({"states": ("ready", "dead")}, WAITS, True),
        ({"states": ("scheduled",)}, WAITS, False),
        ({"priority": "high"}, WAITS, True),
        ({"priority": "normal"}, WAITS, False),
        ({"priority": "normal"}, SOON, True),
        ({"lane": "1+tenant=acme"}, WAITS, True),
        ({"lane": ""}, WAITS, False),
        ({"lane": ""}, SOON, True),
        ({"scope": "tenant=acme"}, WAITS, True),
        ({"scope": "tenant=acm"}, WAITS, False),
        ({"worker": "w-1"}, RUNS, True),
        ({"worker": "w-2"}, RUNS, False),
        ({"failed": 2}, WAITS, True),
        ({"failed": 3}, WAITS, False),
        ({"failed": 1}, SOON, False),
        ({"older": 5}, SOON, True),
        ({"older": 5.001}, SOON, False),
        ({"due": 60}, SOON, True),
        ({"due": 59.999}, SOON, False),
        ({"due": 60}, WAITS, False),
        ({"between": (NOW, None)}, WAITS, True),
        ({"between": (None, NOW)}, WAITS, False),
        ({"between": (NOW - timedelta(seconds=5), NOW)}, SOON, True),
    ],
)
def test_a_filter_matches_a_job_by_its_state_line(
    terms: dict[str, Any], line: str, expected: bool
) -> None:
    assert expected is Filter(queue="mail", **terms).matches_line(job(line), NOW_MS)


SPEC = '{"headers":{"tenant":"acme"},"task":"send","args":{"to":"a","n":3,"ok":true,"x":{"b":1,"a":2}}}'


@pytest.mark.parametrize(
    ("terms", "spec", "expected"),
    [
        ({}, None, True),
        ({"headers": {"tenant": "acme"}}, SPEC, True),
        ({"headers": {"tenant": "acm"}}, SPEC, False),
        ({"headers": {"Tenant": "acme"}}, SPEC, False),
        ({"headers": {"tenant": "acme"}}, '{"task":"send","args":{}}', False),
        ({"args": {"to": "a"}}, SPEC, True),
        ({"args": {"to": "b"}}, SPEC, False),
        ({"args": {"none": ""}}, SPEC, False),
        ({"args": {"n": 3}}, SPEC, True),
        ({"args": {"n": "3"}}, SPEC, True),
        ({"args": {"ok": True}}, SPEC, True),
        ({"args": {"x": {"a": 2, "b": 1}}}, SPEC, True),
        ({"args": {"n": 3}}, "damaged", False),
        ({"args": {"n": 3}}, None, False),
        ({"args": {"n": 3}, "headers": {"tenant": "acme"}}, SPEC, True),
    ],
)
def test_a_filter_matches_a_job_by_its_json(
    terms: dict[str, Any], spec: str | None, expected: bool
) -> None:
    assert expected is Filter(queue="mail", **terms).matches_spec(spec)


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"states": ("gone",)}, "must be states of these"),
        ({"states": "ready"}, "must be states of these"),
        ({"priority": "urgent"}, "must be one of critical"),
        ({"scope": "a b"}, "must be a scope"),
        ({"older": -1}, "must be seconds"),
        ({"failed": -1}, "must be a whole number"),
        ({"failed": True}, "must be a whole number"),
        ({"error": 3}, "must be text"),
        ({"error": "X", "states": ("ready",)}, "only dead jobs have an error"),
        ({"due": 5, "states": ("ready",)}, "only these jobs are due"),
        ({"between": NOW}, "must be two datetimes"),
        ({"between": (NOW, NOW)}, "must have the earlier time first"),
        ({"between": (NOW.replace(tzinfo=None), None)}, "must have a time zone"),
        ({"headers": {"a": 1}}, "must be text"),
        ({"headers": ["a"]}, "must be a mapping"),
        ({"args": {"a=b": 1}}, "names without ="),
        ({"args": {"a": object()}}, "values that JSON can have"),
        ({"args": {"a": "x" * 3000}, "headers": {"h": "x" * 3000}}, "at most 2,048 characters"),
    ],
)
def test_a_filter_that_no_job_can_match_is_refused(terms: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Filter(queue="mail", **terms)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must have a queue"),
        ("task:send", "must have a queue"),
        ("queue:mail mail", "must have words of these"),
        ("queue:mail id:x", "must have words of these"),
        ("queue:mail queue:other", "must have queue once"),
        ("queue:mail header:x", "must be NAME=VALUE"),
        ("queue:mail arg:n=1 arg:n=2", "must have n once"),
        ("queue:mail older:soon", "must be a time"),
        ("queue:mail failed:x", "must be a whole number"),
        ("queue:mail since:later", "must be a time"),
        ("queue:mail " + "x" * 4000, "at most 4,000 characters"),
    ],
)
def test_a_text_that_is_no_filter_is_refused_with_the_form_of_filters(text: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Filter.parse(text)


def test_a_filter_refuses_invalid_names() -> None:
    with pytest.raises(InvalidName):
        Filter(queue="a b")
    with pytest.raises(InvalidName):
        Filter(queue="a", task="a b")


def test_the_states_of_a_filter_are_sorted_and_unique() -> None:
    said = Filter(queue="q", states=("dead", "ready", "dead"))

    assert (State.READY, State.DEAD) == said.states
