"""Steps of durable jobs that type checkers must accept or refuse. Only mypy and pyright read this file.

If a checker no longer finds an error, its `type: ignore` is unused, and the check fails.
"""

from dataclasses import dataclass
from typing import Annotated, assert_type

from rq_core import App, Depends, Durable, DurableSync, durable, durable_sync

app = App()


@dataclass
class Charge:
    id: str


async def charge_card(order_id: int, key: str, *, note: str = "") -> Charge:
    return Charge(f"{order_id} {key} {note}")


def receipt(charge: Charge) -> bytes:
    return charge.id.encode()


def find_charge(order_id: int, key: str) -> Charge:
    return Charge(f"{order_id} {key}")


def refund(charge: Charge) -> None: ...


@app.task
async def order(order_id: int, given: Annotated[Durable, Depends(durable)]) -> None:
    job = durable()
    assert_type(await job.step("charge", charge_card, order_id, "k", note="x"), Charge)
    assert_type(await given.step("receipt", receipt, Charge("1")), bytes)
    careful = job.options(check=find_charge, undo=refund, key="k")
    assert_type(careful, Durable)
    assert_type(await careful.step("charge", charge_card, order_id, "k"), Charge)
    assert_type(await job.step("five", lambda: 5), int)
    assert_type(await job.key("charge"), str)
    await job.undo()
    await job.step("charge", charge_card, "seven", "k")  # type: ignore[call-overload]
    await job.step("charge", charge_card, order_id)  # type: ignore[call-overload]
    await job.step(7, charge_card, order_id, "k")  # type: ignore[call-overload]
    job.options(chek=find_charge)  # type: ignore[call-arg]


@app.task
def plain(order_id: int) -> None:
    job = durable_sync()
    assert_type(job, DurableSync)
    assert_type(job.step("receipt", receipt, Charge("1")), bytes)
    assert_type(job.options(key="k").step("receipt", receipt, Charge("1")), bytes)
    assert_type(job.key("charge"), str)
    job.step("receipt", receipt, 7)  # type: ignore[arg-type]
