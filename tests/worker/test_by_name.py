"""Jobs that a producer without the task's code enqueues by the task's name. Such a job gets the options of its task."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from rq_core import App, RetryPolicy
from tests.kit.wait import wait_until_async
from tests.kit.working import working
from tests.worker.conftest import events


@pytest.fixture
def make_app(valkey_url: str) -> Iterator[Callable[[], App]]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(App(valkey_url))


@pytest.mark.parametrize("attempts", [1, 5])
async def test_a_job_that_was_enqueued_by_name_has_the_max_attempts_of_its_task(
    make_app: Callable[[], App], attempts: int
) -> None:
    app, other = make_app(), make_app()
    ran: list[str] = []

    @app.task(queue="bn", retry=RetryPolicy(max_attempts=attempts, base=0), max_losses=7)
    def pay(who: str) -> None:
        ran.append(who)
        raise ConnectionError("the bank does not answer")

    early = other.enqueue("bn", "pay", {"who": "early"})  # No worker has registered the task yet.
    asked = other.enqueue("bn", "pay", {"who": "asked"}, max_attempts=2)
    async with working(app, queues=("bn",)):
        await wait_until_async(lambda: early.state() == asked.state() == "dead", "both are dead")
        other.connections.policies._found.clear()
        late = other.enqueue("bn", "pay", {"who": "late"})
        await wait_until_async(lambda: late.state() == "dead", "it is dead, too")

    assert {who: ran.count(who) for who in ran} == {"early": attempts, "asked": 2, "late": attempts}
    assert events(app.client, late.id, "bn")[0][1]["max_attempts"] == attempts
    assert events(app.client, late.id, "bn")[0][1]["max_losses"] == 7
    assert events(app.client, early.id, "bn")[-1][1]["reason"] == "attempts_spent"
