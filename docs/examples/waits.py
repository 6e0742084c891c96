from dataclasses import dataclass

from rq_core import App, GiveUp, JobHandle, durable

app = App()


@dataclass
class Approval:
    ok: bool


async def charge_card(order_id: int) -> str:
    print(f"charge order {order_id}")
    return f"ch_{order_id}"


async def refund(charge: str) -> None:
    print(f"refund {charge}")


@app.task(queue="orders")
async def order(order_id: int) -> None:
    job = durable()
    await job.options(undo=refund).step("charge", charge_card, order_id)
    await job.sleep("cool-off", hours=24)
    answer = await job.wait("approval", Approval, timeout=86_400)
    if answer is None or not answer.ok:
        await job.undo()
        raise GiveUp(f"order {order_id} was not approved")


def approve(handle: JobHandle[None]) -> None:
    app.signal(handle, "approval", Approval(ok=True), by="ann", reason="checked", key="webhook-9")
