"""Results in the audit log (``audit_result="full"``). A caller can read a result there after Redis has forgotten it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rq_core import App, ResultUnavailable, Succeeded, WaitTimeout
from rq_core.errors import InvalidOption
from rq_core.model.outcome import Kept
from tests.app.waiting.conftest import QUEUE, position, succeed, take

Mirror = Callable[[], Any]
LONG_S = 20.0


def total(n: int = 0) -> list[float]:
    return [n + 0.5]


@pytest.fixture
def task(app: App) -> Any:
    return app.task(queue=QUEUE, keep_result=True, audit_result="full")(total)


def finish(app: App, handle: Any, kept: str = "full") -> None:
    """Claim the only waiting job, and settle its claim as succeeded."""
    (claim,) = take(app)
    assert claim.id == handle.id
    value = app.tasks["total"].returned.dump(app.tasks["total"](3), kept)
    succeed(app, claim, values={1: value})


def forget(app: App) -> None:
    app.client.run(app.client.calls.delivery.ask([["FLUSHALL"]]))


def test_a_result_that_redis_has_forgotten_is_read_from_the_log(
    app: App, audited: Mirror, task: Any
) -> None:
    handle = task.enqueue(3)
    finish(app, handle)
    audited()
    forget(app)

    assert [3.5] == handle.result(LONG_S)


def test_a_result_that_was_evicted_is_read_from_the_log(
    app: App, audited: Mirror, task: Any
) -> None:
    handle = task.enqueue(3)
    app.client.run(app.client.calls.admin.configure(QUEUE, {"kept_max_bytes": 1}))
    finish(app, handle)
    with pytest.raises(ResultUnavailable, match="kept_max_bytes"):
        app.handle_by_id(QUEUE, handle.id).result(0)
    audited()

    assert [3.5] == handle.result(LONG_S)


def test_without_an_audit_database_an_evicted_result_is_reported_as_missing(
    app: App, audited: Mirror, task: Any
) -> None:
    handle = task.enqueue(3)
    app.client.run(app.client.calls.admin.configure(QUEUE, {"kept_max_bytes": 1}))
    finish(app, handle)
    app.audit_url = None

    assert Succeeded(handle.id, missing="full") == handle.wait(LONG_S)


def test_a_wait_says_whether_a_result_is_lost_or_expired_or_was_not_kept(
    app: App, audited: Mirror, task: Any
) -> None:
    lost = task.with_options(audit_result="digest").enqueue(3)
    finish(app, lost, "digest")
    over = task.with_options(audit_result="digest", keep_result=0.001).enqueue(3)
    finish(app, over, "digest")
    plain = task.with_options(keep_result=False).enqueue(3)
    succeed(app, *take(app))
    audited()
    forget(app)

    found = [app.handle_by_id(QUEUE, each.id).wait(LONG_S) for each in (lost, over, plain)]
    assert ["lost", "expired", "not_kept"] == [each.missing for each in found]  # type: ignore[attr-defined]
    with pytest.raises(ResultUnavailable, match="audit_result"):
        found[0].value  # noqa: B018 - it raises


def test_the_log_keeps_the_result_of_the_first_of_two_jobs_with_one_id(
    app: App, audited: Mirror, task: Any, sqlite_url: str
) -> None:
    from sql_audit.queries.endings import LogEndings

    handle = task.with_options(id="again").enqueue(3)
    finish(app, handle)
    upto = position(app)
    task.with_options(id="again", keep_result=False).enqueue(4)
    succeed(app, *take(app))
    audited()
    reader = LogEndings(sqlite_url)
    first, second = (reader.read(QUEUE, {"again": at})["again"] for at in (upto, position(app)))
    reader.close()

    assert ("[3.5]", None) == (first.kept.json, first.missing)  # type: ignore[attr-defined]
    assert "not_kept" == second.missing  # type: ignore[attr-defined]


def test_the_result_of_a_job_with_a_reused_id_is_read_as_the_type_of_its_own_task(
    app: App, audited: Mirror, task: Any, sqlite_url: str
) -> None:
    """Checks an id that two tasks used. Each result is read as the result type of its own task."""
    from sql_audit.queries.endings import LogEndings

    handle = task.with_options(id="again").enqueue(3)
    finish(app, handle)
    upto = position(app)
    app.tasks["note"].with_options(id="again").enqueue(4)
    audited()
    reader = LogEndings(sqlite_url)
    alive = reader.read(QUEUE, {"again": upto})["again"]
    succeed(app, *take(app))
    audited()
    ended = reader.read(QUEUE, {"again": upto})["again"]
    reader.close()

    assert [Kept("[3.5]", "total")] * 2 == [alive.kept, ended.kept]  # type: ignore[attr-defined]


def test_a_wait_for_a_result_that_only_the_log_has_continues_until_the_mirror_has_copied_it(
    app: App, audited: Mirror, task: Any
) -> None:
    handle = task.enqueue(3)
    finish(app, handle)
    forget_result(app, handle.id)

    with pytest.raises(WaitTimeout, match="the mirror is behind"):
        handle.wait(0)
    audited()
    assert [3.5] == handle.result(LONG_S)


def forget_result(app: App, job_id: str) -> None:
    keys = [f"rqc:{{{QUEUE}}}:{name}" for name in ("results", "returned")]
    app.client.run(app.client.calls.delivery.ask([["HDEL", key, job_id] for key in keys]))


@pytest.mark.parametrize("said", ["all", "", True, None, 1])
def test_an_invalid_audit_result_is_refused_where_the_task_is_defined(app: App, said: Any) -> None:
    with pytest.raises(InvalidOption, match="must be 'digest' or 'full'"):
        app.task(queue=QUEUE, name="other", keep_result=True, audit_result=said)(total)


def test_the_option_audit_result_full_needs_the_option_keep_result(app: App) -> None:
    with pytest.raises(InvalidOption, match="needs keep_result"):
        app.task(queue=QUEUE, name="other", audit_result="full")(total)
    plain = app.task(queue=QUEUE, name="plain")(total)
    with pytest.raises(InvalidOption, match="needs keep_result"):
        plain.with_options(audit_result="full")
    plain.with_options(audit_result="full", keep_result=60)


def test_a_handle_reports_the_end_of_a_job_with_a_kept_result_though_the_mirror_has_not_copied_the_end_yet(
    app: App, audited: Mirror, task: Any
) -> None:
    """Checks that the handle does not report "gone" meanwhile."""
    handle, cancelled = task.enqueue(3), task.with_options(priority="low").enqueue(4)
    finish(app, handle)
    cancelled.cancel()

    assert ["succeeded", "cancelled"] == [handle.state(), cancelled.state()]
