import asyncio
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from rq_core import current_job
from rq_core.contrib.django import app
from rq_core.contrib.django.django_tasks import tasks
from shop.models import Order

used: list[Any] = []
"""The connections that handlers have used."""
task = tasks.task


def note_connection() -> None:
    """Note the database connection of this thread. Asserts that it is open."""
    assert connections["default"].connection is not None
    used.append(connections["default"])


@task(queue_name="mail")
def thank(order: int, *, words: str = "thank you") -> str:
    found = Order.objects.get(pk=order)
    note_connection()
    return f"{found.to}: {words}"


@task
async def thank_async(order: int) -> str:
    found = await Order.objects.aget(pk=order)
    await sync_to_async(note_connection)()
    while len(used) < 2:  # noqa: ASYNC110 - each handler may have a loop of its own
        # The other handler runs at the same time.
        await asyncio.sleep(0.01)
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
def leave() -> None:
    raise SystemExit("the task leaves")


@task
def give_back(value: Any, **_: Any) -> Any:
    return {"bytes": b"\xff", "long": "x" * 70_000, "nan": float("nan")}.get(value, value)


@app.task(queue="own")
def count_orders() -> int:
    found = Order.objects.count()
    note_connection()
    return found


@app.task(queue="own", isolation="process", keep_result=True)
def count_apart() -> str:
    return f"{Order.objects.count()} orders, claim {current_job().claim}"
