"""Scopes as `rq-core caps` shows them: holders, waiting jobs, and the time at which a rate admits a job again."""

from __future__ import annotations

from rq_core import App, Cap, Rate
from tests.app.caps.tasks import claim, send


async def test_app_caps_shows_how_many_running_jobs_a_cap_counts_and_how_many_jobs_wait_for_it(
    app: App,
) -> None:
    task = app.task(queue="mail", caps=[Cap(5), Cap(1, per="tenant"), Rate(1, per_seconds=3600)])(
        send
    )
    app.apply_settings()
    app.set_cap("mail", "task@3600s=send", None)
    app.set_cap("mail", "send.tenant=b", 2)
    for tenant in ("a", "a", "a", "b", "b", "b", "c"):
        task.enqueue(tenant)
    assert len(claim(app)) == 4

    found = {status.scope: status for status in app.caps("mail")}
    shown = {scope: (str(s.limit), s.source, s.holders, s.waiting) for scope, s in found.items()}

    assert shown == {
        "send.tenant": ("1", "code", 4, 3),
        "send.tenant=b": ("2", "live", 2, 1),
        "task=send": ("5", "code", 4, 0),
        "task@3600s=send": ("none", "live", 0, 0),
        "send.tenant=a": ("1", "family", 1, 2),
        "send.tenant=c": ("1", "family", 1, 0),
    }
    assert found["send.tenant=a"].oldest_wait_ms is not None
    assert found["send.tenant=c"].oldest_wait_ms is None
    assert [s.scope for s in await app.caps_async("mail", limit=2)] == [
        "send.tenant",
        "send.tenant=b",
    ]
    await app.aclose()


def test_app_caps_lists_every_key_of_a_cap_with_many_keys(app: App) -> None:
    task = app.task(queue="mail", caps=[Cap(1, per="tenant", name="k")])(send)
    app.apply_settings()
    app.enqueue_many(task.job(f"t{n:04}") for n in range(1_200) for _ in range(2))
    held = 0
    while batch := claim(app, 1_200):  # A call looks at so many lanes and no more.
        held += len(batch)
    assert held == 1_200

    everything = app.caps("mail", limit=5_000)
    some = app.caps("mail", limit=10)

    assert sum(s.scope.startswith("k=") for s in everything) == 1_200
    assert len({s.scope for s in everything}) == len(everything)
    assert {(s.holders, s.waiting) for s in everything if s.scope.startswith("k=t")} == {(1, 1)}
    assert (everything[0].scope, everything[0].holders, everything[0].waiting) == (
        "k",
        1_200,
        1_200,
    )
    assert len(some) == 10


def test_app_caps_shows_when_an_exhausted_rate_admits_a_job_again(app: App) -> None:
    task = app.task(queue="mail", caps=[Rate(1, per_seconds=3600)])(send)
    app.apply_settings()
    for _ in range(3):
        task.enqueue("a")
    assert len(claim(app)) == 1

    (status,) = app.caps("mail")

    assert (status.scope, str(status.limit), status.waiting) == (
        "task@3600s=send", "1/3600000ms/1", 2
    )  # fmt: skip
    now_s, _ = app.client.run(app.client.calls.delivery.ask([["TIME"]]))[0]
    assert status.resumes_ms is not None
    assert 0 < status.resumes_ms / 1000 - int(now_s) <= 3601


def test_app_caps_counts_the_jobs_that_wait_for_a_full_queue(app: App) -> None:
    """Checks the cap of a queue. The count includes the jobs of all lists and lanes, though no lane is blocked."""
    plain = app.task(queue="mail", name="plain")(send)
    capped = app.task(queue="mail", name="capped", caps=[Cap(9)])(send)
    app.apply_settings()
    app.set_cap("mail", "queue", 2)
    for task in (plain, capped):
        task.enqueue("a")
        task.with_options(priority="low").enqueue("a")

    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting, queue.oldest_wait_ms) == (0, 0, None)

    assert len(claim(app)) == 2
    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting) == (2, 2)
    assert queue.oldest_wait_ms is not None
    app.set_cap("mail", "queue", None)
    (queue,) = [status for status in app.caps("mail") if status.scope == "queue"]
    assert (queue.holders, queue.waiting) == (2, 0)
