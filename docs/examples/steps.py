from dataclasses import dataclass

from rq_core import App, GiveUp, RetryPolicy, durable

app = App()


@dataclass
class Charge:
    id: str
    cents: int


async def charge_card(order_id: int, request: str) -> Charge:
    print(f"charge order {order_id}, request {request[:4]}…")
    return Charge(f"ch_{order_id}", 1250)


async def refund(charge: Charge) -> None:
    print(f"refund {charge.id}")


async def in_stock(order_id: int) -> bool:
    return order_id != 13


async def ship(order_id: int) -> str:
    print(f"ship order {order_id}")
    return f"parcel-{order_id}"


@app.task(queue="orders", retry=RetryPolicy(max_attempts=5))
async def order(order_id: int) -> None:
    job = durable()
    request = await job.key("charge")
    charge = await job.options(undo=refund).step("charge", charge_card, order_id, request)
    if not await job.step("stock", in_stock, order_id):
        await job.undo()
        raise GiveUp(f"order {order_id} is not in stock, {charge.cents} cents are refunded")
    await job.step("ship", ship, order_id)
