"""State lines. A job's state is read from its line in the key `state` and its value in the key `jobs`."""

import pytest

from rq_core.model.job import spec_of
from rq_core.model.state_line import line_of_job, lines_of_jobs

SPEC = '{"task":"send","args":{"text":"a\\nb"}}'
HEAD = "task=send priority=high seq=7 since=5"
RUNNING = "running task=send claim=1 fence=5-1 by=w-1 seq=7 since=6"


@pytest.mark.parametrize(
    ("line", "value", "stands"),
    [
        (None, f"{HEAD}\n{SPEC}", f"ready {HEAD}"),
        (None, HEAD, f"ready {HEAD}"),
        (RUNNING, f"{HEAD}\n{SPEC}", RUNNING),
        (RUNNING, None, RUNNING),
        (RUNNING, SPEC, RUNNING),
        (None, SPEC, None),
        (None, "", None),
        (None, None, None),
    ],
)
def test_a_job_without_a_state_line_is_read_from_the_first_line_of_its_value(
    line: str | None, value: str | None, stands: str | None
) -> None:
    assert line_of_job(line, value) == stands


def test_the_function_lines_of_jobs_returns_the_state_line_of_each_job() -> None:
    lines = {"runs": RUNNING, "bare": RUNNING}
    values = {"runs": f"{HEAD}\n{SPEC}", "waits": f"{HEAD}\n{SPEC}", "lost": SPEC}

    assert lines_of_jobs(lines, values) == {
        "runs": RUNNING,
        "bare": RUNNING,
        "waits": f"ready {HEAD}",
    }


@pytest.mark.parametrize("value", [SPEC, f"{HEAD}\n{SPEC}"])
def test_the_stored_value_of_a_job_has_the_spec_of_the_job_behind_the_first_line(
    value: str,
) -> None:
    assert spec_of(value) == SPEC
