"""The outcome for a caller whose job a full scope discards or rejects."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rq_core import App, NewJob, ScopeFull
from rq_core.app.handles.handle import handle_of
from rq_core.connections.async_client import AsyncClient
from rq_core.connections.shared_enqueues import SharedEnqueues
from rq_core.model.job import profile
from rq_core.protocol.calls.enqueue import Accepted


def outcome(app: App, accepted: Accepted) -> Any:
    return handle_of(app, NewJob("x", "mail", profile("send"), "{}"), accepted)


def test_a_handle_says_whether_its_job_was_discarded(app: App) -> None:
    taken = outcome(app, Accepted(("x",)))
    assert (taken.duplicate, taken.discarded) == (False, False)
    assert outcome(app, Accepted((), ("x",))).duplicate
    dropped = outcome(app, Accepted((), (), (("x", "task=send"),)))
    assert (dropped.duplicate, dropped.discarded) == (False, True)
    assert repr(dropped) == "<job x of send in mail, discarded>"


@pytest.mark.parametrize(
    ("scope", "says"),
    [
        ("tenant=a", "scope tenant=a is full, and its cap says reject"),
        ("2+task=send+tenant=a", "as its cap's max_waiting allows"),
    ],
)
def test_the_error_for_a_rejected_job_names_the_job_and_the_full_scope(
    app: App, scope: str, says: str
) -> None:
    with pytest.raises(ScopeFull, match="queue 'mail' did not take job x") as caught:
        outcome(app, Accepted((), (), (), (("x", scope),)))
    assert says in str(caught.value)
    assert caught.value.facts == {"scope": scope, "queue": "mail", "id": "x"}


class Scripted(AsyncClient):
    """A client that decides by the ids of jobs: it discards drop-…, rejects full-…, and accepts no id twice."""

    def __init__(self) -> None:
        super().__init__("redis://nowhere.invalid")
        self.sent: list[list[str]] = []
        self.open: list[str] = []
        self.calls.enqueue.many = lambda jobs, _on_chunk=None: [job.id for job in jobs]  # type: ignore[method-assign]
        self.shared = SharedEnqueues(
            self.calls.enqueue, lambda call, _through: self.run(list(call.ids))
        )

    async def run(self, what: Any) -> Any:
        ids: list[str] = what
        known = {i for call in self.sent for i in call}
        self.sent.append(ids)
        self.open += ids
        # Else a second job of an id might overtake the first.
        assert len(set(self.open)) == len(self.open)
        await asyncio.sleep(0)
        self.open = [i for i in self.open if i not in ids]
        return Accepted(
            tuple(i for i in ids if i[:4] not in ("drop", "full") and i not in known),
            tuple(i for i in ids if i in known),
            tuple((i, "task=send") for i in ids if i.startswith("drop")),
            tuple((i, "tenant=a") for i in ids if i.startswith("full")),
        )


async def test_callers_that_share_a_call_each_receive_their_own_outcome() -> None:
    client = Scripted()
    wanted = [f"{kind}-{n}" for n in range(20) for kind in ("ok", "drop", "full")] + ["ok-0"]

    found = await asyncio.gather(
        *(client.enqueue_one(NewJob(i, "q", profile("send"), "{}")) for i in wanted)
    )
    await client.close()

    assert len(client.sent) < len(wanted)
    for job_id, accepted in zip(wanted[:-1], found[:-1], strict=True):
        assert (
            accepted
            == {
                "ok": Accepted((job_id,)),
                "dr": Accepted((), (), ((job_id, "task=send"),)),
                "fu": Accepted((), (), (), ((job_id, "tenant=a"),)),
            }[job_id[:2]]
        )
    assert found[-1] == Accepted((), ("ok-0",))


async def test_enqueue_many_async_reports_the_outcome_of_every_job(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Scripted()
    monkeypatch.setattr(app, "async_client", lambda: client)

    async def jobs() -> Any:
        for job_id in ("ok-1", "drop-1", "full-1"):
            yield NewJob(job_id, "q", profile("send"), "{}")

    assert await app.enqueue_many_async(jobs()) == Accepted(
        ("ok-1",), (), (("drop-1", "task=send"),), (("full-1", "tenant=a"),)
    )
    await client.close()
