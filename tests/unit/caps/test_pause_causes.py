"""Phrases about the failures that paused a scope."""

from __future__ import annotations

import pytest

from rq_core.model.limits.pauses import cause_says


@pytest.mark.parametrize(("types", "says"), [
    (["OSError"], "by 1 failure: OSError of job j-0"),
    (["OSError"] * 10, "by 10 failures: OSError, the last of job j-0"),
    (
        ["KeyError", "OSError", None, "OSError"],
        "by 4 failures: 2 OSError, 1 KeyError, 1 ?, the last of job j-0",
    ),
    (
        ["A", "B", "C", "D", "E", "E"],
        "by 6 failures: 2 E, 1 A, 1 B, 2 of other types, the last of job j-0",
    ),
])  # fmt: skip
def test_a_sentence_about_a_pause_names_each_type_of_error_once_and_the_last_failed_job(
    types: list[str | None], says: str
) -> None:
    """The log names the last failure first."""
    failures = [{"job_id": f"j-{n}", "error_type": each} for n, each in enumerate(types)]

    assert cause_says({"cause": "failures", "failures": failures}) == says
