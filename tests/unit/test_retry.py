"""The delays before retries, and the failures that are not retried."""

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rq_core import GiveUp, InvalidOption, RetryLater, RetryPolicy, Snooze


def half() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (RetryPolicy(jitter=False), [1, 2, 4, 8]),
        (RetryPolicy(jitter=False, base=3, maximum=10), [3, 6, 10, 10]),
        (RetryPolicy(jitter="none", backoff="linear", base=2), [2, 4, 6, 8]),
        (RetryPolicy(jitter="none", backoff="fixed", base=5), [5, 5, 5, 5]),
        (RetryPolicy(jitter=True), [0.5, 1, 2, 4]),
        (RetryPolicy(jitter="full", backoff="fixed", base=4), [2, 2, 2, 2]),
        (RetryPolicy(jitter="equal", backoff="fixed", base=4), [3, 3, 3, 3]),
        (RetryPolicy(backoff=lambda failures: failures * 7, maximum=20), [7, 14, 20, 20]),
        (RetryPolicy(base=0), [0, 0, 0, 0]),
    ],
)
def test_the_delay_before_each_retry_follows_the_policy(
    policy: RetryPolicy, expected: list[float]
) -> None:
    assert [policy.delay(failures, half) for failures in (1, 2, 3, 4)] == expected


@given(
    st.integers(1, 10**6),
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.sampled_from(["full", "equal", "none"]),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1, exclude_max=True),
)
def test_each_delay_is_between_0_and_the_maximum(
    failures: int, backoff: Any, jitter: Any, base: float, maximum: float, drawn: float
) -> None:
    policy = RetryPolicy(backoff=backoff, jitter=jitter, base=base, maximum=maximum)

    assert 0 <= policy.delay(failures, lambda: drawn) <= maximum


@pytest.mark.parametrize(
    "options",
    [
        {"max_attempts": 0},
        {"max_attempts": True},
        {"max_attempts": 1.5},
        {"backoff": "quadratic"},
        {"backoff": None},
        {"base": -1},
        {"base": math.nan},
        {"base": "1"},
        {"maximum": math.inf},
        {"jitter": "some"},
        {"jitter": 2},
        {"retry_on": "ValueError"},
        {"give_up_on": (ValueError, 5)},
    ],
)
def test_the_error_of_an_invalid_retry_option_names_the_option(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as caught:
        RetryPolicy(**options)

    assert caught.value.facts["option"] == next(iter(options))


POLICY = RetryPolicy(jitter=False, retry_on=OSError, give_up_on=(PermissionError, KeyError))


@pytest.mark.parametrize(
    ("policy", "error", "expected"),
    [
        (RetryPolicy(jitter=False), ValueError(), ("retry", 2, "failed")),
        (RetryPolicy(jitter=False), GiveUp("no such user"), ("final", 0, "gave_up")),
        (RetryPolicy(jitter=False), RetryLater(after=7), ("retry", 7, "retry_later")),
        (RetryPolicy(jitter=False), RetryLater(), ("retry", 2, "retry_later")),
        (POLICY, TimeoutError(), ("retry", 2, "failed")),
        (POLICY, ValueError(), ("final", 0, "not_retried")),
        (POLICY, PermissionError(), ("final", 0, "gave_up")),
        (POLICY, KeyError(), ("final", 0, "gave_up")),
        (POLICY, RetryLater(after=0), ("retry", 0, "retry_later")),
        (POLICY, Snooze(60), ("rollback", 60, "snoozed")),
    ],
)
def test_a_retry_policy_retries_a_failed_job_after_a_delay_or_ends_it_with_a_reason(
    policy: RetryPolicy, error: Exception, expected: tuple[str, float, str]
) -> None:
    assert tuple(policy.verdict(error, 2, half)) == expected


@pytest.mark.parametrize("signal", [Snooze, lambda after: RetryLater(after=after)])
@pytest.mark.parametrize("after", [math.nan, math.inf, "5", True, 10**400])
def test_snooze_and_retry_later_refuse_an_invalid_duration_when_they_are_created(
    signal: Any, after: Any
) -> None:
    with pytest.raises(InvalidOption, match="after"):
        signal(after)


def test_the_signal_snooze_needs_a_duration() -> None:
    with pytest.raises(InvalidOption, match="after"):
        Snooze(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("signal", [Snooze, lambda after: RetryLater(after=after)])
@pytest.mark.parametrize("after", [-5, -math.inf, -(10**400), timedelta(days=-1)])
def test_a_handlers_signal_with_a_negative_duration_lets_the_job_run_again_at_once(
    signal: Any, after: Any
) -> None:
    assert POLICY.verdict(signal(after), 1, half)[1] == 0


@pytest.mark.parametrize("signal", [Snooze(5), RetryLater(after=5)])
def test_a_snooze_or_retry_later_whose_duration_became_invalid_is_settled_with_the_maximum_delay(
    signal: Any,
) -> None:
    signal.after = "soon"

    assert RetryPolicy(maximum=60).verdict(signal, 1, half)[1] == 60


@pytest.mark.parametrize("signal", [GiveUp, RetryLater, lambda reason: Snooze(1, reason)])
def test_the_reason_of_a_handlers_signal_is_converted_to_text_when_it_is_created(
    signal: Any,
) -> None:
    assert str(signal(7)) == "7"
    assert str(signal({"password": 1})) == "{'password': 1}"


@pytest.mark.parametrize("backoff", [lambda _: 1 / 0, lambda _: None, lambda _: -5])
def test_a_backoff_function_that_fails_still_causes_a_retry(
    backoff: Any, caplog: pytest.LogCaptureFixture
) -> None:
    verdict = RetryPolicy(backoff=backoff).verdict(ValueError(), 3, half)

    assert verdict == ("retry", 2.0, "failed")
    assert "backoff function failed" in caplog.text
