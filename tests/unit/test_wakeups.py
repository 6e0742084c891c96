"""The watcher of a worker, which handles wake tokens and the answers to claims."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from rq_core.connections.async_client import AsyncClient
from rq_core.protocol.calls.claims import Claimed
from rq_core.protocol.engine.plan import ReplyError
from rq_core.worker import wakeups
from rq_core.worker.wakeups import WatchedQueue, Watcher
from tests.kit.wait import wait_until_async


class Server(AsyncClient):
    """A client that gives the test's tokens to a worker. It records whether the worker waited, and which tokens came
    back."""

    def __init__(self, *tokens: str) -> None:
        super().__init__()
        self.waited = False
        self.tokens = [*tokens]
        self.returned: list[str] = []

    async def wait_wake(
        self,
        queues: Sequence[str],
        seconds: float,
        on_token: Callable[[str], None] = lambda _: None,
    ) -> str | None:
        self.waited = bool(queues)
        if self.tokens:
            on_token(self.tokens[0])
            await asyncio.sleep(0)
            return self.tokens.pop(0)
        await asyncio.sleep(seconds)
        return None

    async def return_token(self, queue: str) -> None:
        self.returned.append(queue)


def watcher(
    *queues: WatchedQueue, client: AsyncClient | None = None
) -> tuple[Watcher, asyncio.Event]:
    looked = asyncio.Event()
    named = {queue.name: queue for queue in queues}
    made = Watcher(
        client or Server(),
        named,
        burst=False,
        full=lambda: False,
        interval=lambda: 0.05,
        on_look=looked.set,
    )
    return made, looked


async def test_a_wake_token_that_arrives_during_a_claim_causes_another_claim() -> None:
    """The job of the token is enqueued after the claim has read the queue. No other worker gets the token."""
    queue = WatchedQueue("mail")
    watching, _ = watcher(queue)
    queue.ask()

    watching.look_at([queue])
    watching.note(queue, Claimed((), 1_000, None, more=False))

    assert queue.look


async def test_a_worker_does_not_claim_again_from_a_queue_that_was_empty() -> None:
    queue = WatchedQueue("mail")
    watching, _ = watcher(queue)
    queue.ask()

    watching.note(queue, Claimed((), 1_000, None, more=False))

    assert (queue.look, queue.empty) == (False, True)


async def test_a_worker_claims_from_a_queue_when_the_next_job_of_the_queue_is_due() -> None:
    queue = WatchedQueue("mail")
    watching, looked = watcher(queue)
    queue.ask()

    watching.note(queue, Claimed((), 1_000, 1_020, more=False))
    assert not queue.look
    async with asyncio.timeout(5):
        await looked.wait()

    assert queue.look
    watching.close()


async def test_a_late_answer_to_an_older_claim_does_not_cancel_the_timer_of_a_due_job() -> None:
    """Two claims are under way. Redis ran the first one before the job was scheduled, but its answer arrives last."""
    queue = WatchedQueue("mail")
    watching, looked = watcher(queue)
    queue.ask()
    queue.ask()

    watching.note(queue, Claimed((), 2_000, 2_020, more=False))
    watching.note(queue, Claimed((), 1_000, None, more=False))
    assert not queue.look
    async with asyncio.timeout(5):
        await looked.wait()

    assert queue.look
    watching.close()


async def test_the_timer_of_a_due_job_fires_once() -> None:
    queue = WatchedQueue("mail")
    watching, looked = watcher(queue)
    queue.ask()
    watching.note(queue, Claimed((), 1_000, 1_001, more=False))
    async with asyncio.timeout(5):
        await looked.wait()
    queue.ask()

    watching.note(queue, Claimed((), 1_002, None, more=False))

    assert (queue.look, queue.empty, queue.timer) == (False, True, None)


@pytest.mark.parametrize("asked", [True, False])
async def test_a_worker_waits_for_no_wake_token_while_claims_are_under_way(asked: bool) -> None:
    queue, server = WatchedQueue("mail", look=False, asked=asked), Server()
    watching, looked = watcher(queue, client=server)

    watch = asyncio.create_task(watching.run())
    async with asyncio.timeout(5):
        await looked.wait()
    watching.stop()
    await watch

    assert server.waited == (not asked)
    assert queue.look, "it looks now and then all the same"


async def test_a_wake_token_causes_a_claim_as_soon_as_the_token_arrives() -> None:
    """The watcher uses the token when it arrives, and does not use it a second time."""
    mail, other = WatchedQueue("mail", look=False), WatchedQueue("other", look=False)
    server = Server("mail")
    watching, looked = watcher(mail, other, client=server)

    watch = asyncio.create_task(watching.run())
    await asyncio.sleep(0)

    assert looked.is_set()
    assert (mail.look, other.look) == (True, False)
    assert server.tokens, "the watcher has not heard of it itself"
    watching.stop()
    await watch
    assert server.returned == []


async def test_a_wake_token_that_arrives_too_late_is_put_back_into_redis() -> None:
    """The worker's last free place was taken meanwhile. The token goes to another worker."""
    full, queue = asyncio.Event(), WatchedQueue("mail", look=False)
    server = Server("mail")
    watching, looked = watcher(queue, client=server)
    watching._full = full.is_set
    hear = watching._use_token

    def fills_up(name: str) -> None:
        full.set()
        hear(name)

    watching._use_token = fills_up  # type: ignore[method-assign]
    watch = asyncio.create_task(watching.run())
    await wait_until_async(lambda: server.returned, "the token goes back")

    assert server.returned == ["mail"]
    assert not looked.is_set()
    watching.stop()
    await watch


async def test_after_a_failed_wait_a_worker_sends_its_next_wait_without_a_claim_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks a user that may not wait for tokens. Its claims would otherwise follow each other in a loop."""
    queue = WatchedQueue("mail", look=False)
    watching, _ = watcher(queue, client=(server := Server("mail")))
    armed: list[bool] = []

    async def wait() -> None:
        if len(armed) == 1:
            raise ReplyError("NOPERM this user has no permissions to run the 'blpop' command")

    def arm(_queue: WatchedQueue, _seconds: float, *, far: bool) -> asyncio.Task[None]:
        assert far
        armed.append(server.waited)
        return asyncio.create_task(wait())

    watching.arm = arm
    monkeypatch.setattr(wakeups, "FAR_S", 0.0)
    monkeypatch.setattr(wakeups, "STILL_FAR_S", 0.0)
    monkeypatch.setattr(wakeups, "PLAIN_SHARE", 0.0)
    with pytest.raises(ReplyError):
        await watching._wait_for_token()
    for _ in range(3):
        await watching._wait_for_token()

    assert armed == [False, True, True]
