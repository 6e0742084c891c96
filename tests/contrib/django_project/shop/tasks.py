from typing import Any

from django.db import connections

from rq_core import current_job
from rq_core.contrib.django import app
from rq_core.contrib.django.django_tasks import tasks
from shop.models import Order

used: list[Any] = []
"""The connections that handlers have used."""
task = tasks.task


@task(queue_name="mail")
def thank(order: int, *, words: str = "thank you") -> str:
    used.append(connections["default"])
    return f"{Order.objects.get(pk=order).to}: {words}"


@task
async def thank_async(order: int) -> str:
    found = await Order.objects.aget(pk=order)
    used.append(connections["default"])
    return found.to


@task(takes_context=True)
def fail_once(context: Any) -> list[Any]:
    if context.attempt == 1:
        raise ConnectionError("no courier")
    return [context.attempt, context.task_result.id]


class NoParcel(Exception):
    pass


@task
def fail() -> None:
    raise NoParcel("lost on the way")


@task
def give_back(value: Any, **_: Any) -> Any:
    return {"bytes": b"\xff", "long": "x" * 70_000, "nan": float("nan")}.get(value, value)


@app.task(queue="own")
def count_orders() -> int:
    used.append(connections["default"])
    return Order.objects.count()


@app.task(queue="own", isolation="process", keep_result=True)
def count_apart() -> str:
    return f"{Order.objects.count()} orders, claim {current_job().claim}"
