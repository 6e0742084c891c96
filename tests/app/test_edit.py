"""Edits of a job through its handle: what the handle sends, which edits are refused, and the errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rq_core import App, InvalidOption, JobHandle, NotEdited, UsageError
from rq_core.app.handles.edit import change_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Change

INSTANT = datetime(2030, 1, 2, tzinfo=UTC)
MS = int(INSTANT.timestamp() * 1000)


@pytest.fixture
def handle(redis_url: str) -> Iterator[JobHandle[None]]:
    with App(redis_url) as app:

        @app.task(queue="notes")
        def note() -> None: ...

        yield note.with_options(delay=60).enqueue()


def hold(handle: JobHandle[None]) -> Any:
    """Claim the only ready job."""
    client = handle._producer.client
    (held,) = client.run(claims.claim("notes", "w-1", 1)).jobs
    return held


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"priority": "high"}, Change("high")),
        ({"now": True}, Change(due="+0")),
        ({"delay": 0}, Change(due="+0")),
        ({"delay": timedelta(minutes=1)}, Change(due="+60000")),
        ({"at": INSTANT}, Change(due=str(MS))),
        ({"expires": 1.5}, Change(expires="+1500")),
        ({"expires": None}, Change(expires="-")),
        ({"expires": None, "delay": 5}, Change("", "+5000", "-")),
        ({"now": True, "expires": INSTANT}, Change("", "+0", str(MS))),
    ],
)
def test_options_of_edit_become_arguments_of_the_script(
    options: dict[str, Any], expected: Change
) -> None:
    assert expected == change_of("notes", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": "urgent"}, "must be one of critical, high"),
        ({"priority": ""}, "must be one of critical, high"),
        ({"now": True, "delay": 5}, "does not go with delay"),
        ({"now": True, "at": INSTANT}, "does not go with at"),
        ({"delay": 5, "at": INSTANT}, "does not go with delay"),
        ({"delay": -1}, "must be seconds"),
        ({"at": datetime(2030, 1, 2)}, "must have a time zone"),  # noqa: DTZ001 - that is the point
        ({"expires": 0}, "must be a datetime, or seconds"),
        ({"expires": datetime(2020, 1, 2, tzinfo=UTC)}, "must lie in the future"),
        ({"expires": 5, "delay": 5}, "must be later than the job's delay"),
        ({"expires": INSTANT, "at": INSTANT}, "must be later than the job's delay"),
    ],
)
def test_an_invalid_option_is_refused_before_anything_is_sent(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        change_of("notes", **options)


def test_an_edit_without_options_is_refused() -> None:
    with pytest.raises(UsageError, match="give priority, delay, at, now or expires"):
        change_of("notes")


async def test_edit_and_edit_async_change_a_job(handle: JobHandle[None]) -> None:
    handle.edit(priority="low", expires=120)
    assert handle.state() == "scheduled"
    await handle.edit_async(now=True, why="a customer asked")

    assert await handle.state_async() == "ready"
    found = handle._producer.client.run(
        handle._producer.client.calls.reads.job(handle.id, ["notes"])
    )
    assert found is not None
    assert found.fields["priority"] == "low"
    await handle._producer.aclose()  # type: ignore[attr-defined]  # the app


def test_edit_refuses_a_job_that_is_not_waiting_to_run(
    handle: JobHandle[None],
) -> None:
    handle.edit(now=True)
    held = hold(handle)
    with pytest.raises(NotEdited, match="it runs, and only a job that waits") as caught:
        handle.edit(priority="high")
    assert (caught.value.outcome, caught.value.id) == ("running", handle.id)  # type: ignore[attr-defined]
    client = handle._producer.client
    record = (held.id, held.fence, "final", 0, "gave_up", "null")
    client.run(claims.fail("notes", "w-1", [record]))
    with pytest.raises(NotEdited, match=f"Requeue it first: `rq-core requeue {handle.id}`"):
        handle.edit(priority="high")
    client.run(client.calls.admin.requeue("notes", [handle.id]))
    hold(handle)
    handle.cancel()
    with pytest.raises(NotEdited, match="was asked to stop"):
        handle.edit(now=True)
    with pytest.raises(NotEdited, match="Redis does not have it"):
        JobHandle(handle._producer, id="nowhere", queue="notes").edit(now=True)


def test_an_edit_after_which_the_job_could_never_run_is_refused(handle: JobHandle[None]) -> None:
    with pytest.raises(NotEdited, match="at its deadline or later"):
        handle.edit(expires=1)


def test_edit_fails_if_the_state_line_of_the_job_differs_from_the_given_line(
    handle: JobHandle[None],
) -> None:
    with pytest.raises(NotEdited, match="Read the line again"):
        handle.edit(now=True, line="ready task=note seq=1 since=1")
    assert handle.state() == "scheduled"


@pytest.mark.parametrize("line", [None, 5, b"ready"])
async def test_an_edit_with_a_state_line_that_is_no_str_is_refused(
    handle: JobHandle[None], line: Any
) -> None:
    with pytest.raises(InvalidOption, match="line"):
        handle.edit(now=True, line=line)
    with pytest.raises(InvalidOption, match="line"):
        await handle.edit_async(now=True, line=line)
    assert handle.state() == "scheduled"


def test_the_error_of_an_unknown_option_of_edit_lists_the_options(
    handle: JobHandle[None],
) -> None:
    """Checks that the error names the method `edit`, and no internal function."""
    says = r"edit\(\) got an unexpected keyword argument 'bogus': its options are priority, delay, at, now, expires\."
    with pytest.raises(TypeError, match=says):
        handle.edit(bogus=1)  # type: ignore[call-arg]


def test_edit_removes_a_deadline_and_keeps_fields_that_are_not_given(
    handle: JobHandle[None],
) -> None:
    handle.edit(expires=120)
    handle.edit(priority="high")
    assert (
        "expires"
        in handle._producer.client.run(handle._producer.client.calls.reads.job(handle.id)).fields
    )

    handle.edit(expires=None)
    after = handle._producer.client.run(handle._producer.client.calls.reads.job(handle.id))
    assert "expires" not in after.fields
    assert after.fields["priority"] == "high"
