"""Sleeps, waits and signals of durable jobs that type checkers must accept or refuse. Only mypy and pyright read this
file.

If a checker no longer finds an error, its `type: ignore` is unused, and the check fails.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import assert_type

from rq_core import App, durable, durable_sync

app = App()


@dataclass
class Approval:
    ok: bool


@app.task
async def order(order_id: int) -> None:
    job = durable()
    await job.sleep("cool-off", 60)
    await job.sleep("cool-off", timedelta(days=1))
    await job.sleep("cool-off", hours=24)
    await job.sleep("cool-off", until=datetime(2027, 1, 1, tzinfo=UTC))
    assert_type(await job.wait("approval", Approval), Approval)
    assert_type(await job.wait("approval", Approval, timeout=86_400), Approval | None)
    assert_type(await job.wait("approval", Approval, timeout=timedelta(days=1)), Approval | None)
    await job.sleep("cool-off", "60")  # type: ignore[arg-type]
    await job.sleep(60)  # type: ignore[arg-type]
    await job.sleep("cool-off", days=1)  # type: ignore[call-arg]
    await job.wait("approval", Approval, timeout="1 d")  # type: ignore[call-overload]
    await job.wait("approval", Approval(ok=True))  # type: ignore[call-overload]
    await job.wait(Approval)  # type: ignore[call-overload]
    answer = await job.wait("approval", Approval, timeout=1)
    _ok = answer.ok  # type: ignore[union-attr]


@app.task
def plain(order_id: int) -> None:
    job = durable_sync()
    job.sleep("cool-off", hours=24)
    assert_type(job.wait("approval", Approval), Approval)
    assert_type(job.wait("approval", Approval, timeout=86_400), Approval | None)
    job.sleep("cool-off", until="tomorrow")  # type: ignore[arg-type]
    job.wait("approval")  # type: ignore[call-overload]


def approve(job_id: str) -> None:
    handle = app.handle_by_id("orders", job_id)
    sent = app.signal(
        handle, "approval", Approval(ok=True), by="ann", reason="checked", key="webhook-9"
    )
    assert_type(sent, str)
    app.signal(order.enqueue(order_id=7), "approval", Approval(ok=True))
    app.signal(job_id, "approval")  # type: ignore[arg-type]
    app.signal(handle, Approval(ok=True))  # type: ignore[arg-type]
    app.signal(handle, "approval", by=7)  # type: ignore[arg-type]
    app.signal(handle, "approval", why="checked")  # type: ignore[call-arg]


async def approve_async(job_id: str) -> None:
    handle = app.handle_by_id("orders", job_id)
    assert_type(await app.signal_async(handle, "approval", Approval(ok=True)), str)
    await app.signal_async(handle, "approval", key=9)  # type: ignore[arg-type]
