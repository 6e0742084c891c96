"""An app changes all jobs of a queue that match a filter."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import App, Filter, InvalidOption, JobsChanged, UsageError
from rq_core.protocol.calls.bulk import BulkPlace
from tests.kit.seed import Seed


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    with App(valkey_url) as made:

        @made.task(queue="mail")
        def send(n: int) -> None: ...

        yield made


def enqueue(app: App, count: int, **options: Any) -> None:
    task = app.tasks["send"].with_options(**options)
    app.enqueue_many(task.job(n) for n in range(count))


def counts(app: App) -> tuple[int, int, int]:
    found = app.client.run(app.client.calls.reads.counts("mail"))
    return sum(found.ready.values()), found.scheduled, found.dead


@pytest.mark.slow
def test_jobs_are_cancelled_and_edited_by_a_filter(app: App) -> None:
    enqueue(app, 300)
    enqueue(app, 3, delay=60)
    seen: list[BulkPlace] = []

    preview = app.cancel_where(Filter(queue="mail", task="send"), dry_run=True)
    made = app.cancel_where(
        Filter(queue="mail", task="send", args={"n": 2}),
        reason="no longer needed",
        progress=seen.append,
    )

    assert preview.outcomes == {"ready": 300, "scheduled": 3}
    assert isinstance(made, JobsChanged)
    assert (made.changed, made.outcomes) == (2, {"cancelled": 2})
    assert seen[-1].looked == made.looked
    assert seen[-1].id == made.id
    edited = app.edit_where(Filter(queue="mail", states=("scheduled",)), now=True)
    assert (edited.changed, counts(app)[1]) == (2, 0)


def test_dead_jobs_are_requeued_and_pruned_by_a_filter(app: App, valkey_url: str) -> None:
    with Seed(valkey_url, "mail", real_clock=True) as seed:
        for n in range(4):
            seed.dead(f"d{n}")

    assert 1 == app.requeue_where(Filter(queue="mail", error="ValueError"), limit=1).changed
    assert 0 == app.requeue_where(Filter(queue="mail", error="KeyError")).changed
    assert 3 == app.prune_where(Filter(queue="mail", states=("dead",)), by="ann").changed
    assert (1, 0, 0) == counts(app)


@pytest.mark.slow
def test_each_method_that_changes_many_jobs_has_an_async_form(app: App, valkey_url: str) -> None:
    enqueue(app, 5)
    with Seed(valkey_url, "mail", real_clock=True) as seed:
        seed.dead("a")
        seed.dead("b")

    async def change() -> list[int]:
        async with app:
            mail = Filter(queue="mail")
            return [
                (await app.edit_where_async(mail, priority="high")).changed,
                (await app.requeue_where_async(mail, limit=1)).changed,
                (await app.prune_where_async(mail)).changed,
                (await app.cancel_where_async(mail)).changed,
            ]

    assert [5, 1, 1, 6] == asyncio.run(change())


@pytest.mark.slow
def test_a_change_of_many_jobs_that_was_stopped_continues_at_the_position_that_it_last_reported(
    app: App,
) -> None:
    enqueue(app, 600)
    places: list[str] = []

    def stop(place: BulkPlace) -> None:
        places.append(str(place))
        if place.changed:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        app.cancel_where(Filter(queue="mail", task="send"), progress=stop)
    made = app.cancel_where(Filter(queue="mail", task="send"), resume=places[-1])

    assert places[-1].startswith(made.id)
    assert made.changed == 600


def test_changes_of_many_jobs_refuse_unknown_options_and_values_that_are_no_filter(
    app: App,
) -> None:
    mail = Filter(queue="mail")
    with pytest.raises(TypeError, match=r"cancel_where\(\) has no option 'why': its options are"):
        app.cancel_where(mail, why="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'prio'"):
        app.edit_where(mail, prio="high")  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="nothing to change"):
        app.edit_where(mail, reason="x")
    with pytest.raises(InvalidOption, match="must be a Filter"):
        app.cancel_where("mail")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="must be the place"):
        app.cancel_where(mail, resume="x")
