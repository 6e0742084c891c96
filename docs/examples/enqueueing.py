from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from rq_core import App, NotEdited

app = App()


@app.task(queue="mail")
def send(tenant: str, to: str) -> None:
    print(f"to {to} for {tenant}")


def enqueue_in_every_way(rows: Iterable[tuple[str, str]]) -> None:
    send.enqueue(tenant="acme", to="a@b.c")
    send.with_options(delay=60, priority="high").enqueue(tenant="acme", to="a@b.c")
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    send.with_options(at=tomorrow).enqueue(tenant="acme", to="a@b.c")
    send.with_options(expires=300).enqueue(tenant="acme", to="a@b.c")  # in 5 minutes or never
    app.enqueue_many(send.job(tenant=t, to=a) for t, a in rows)
    app.enqueue("mail", "send", {"tenant": "acme", "to": "a@b.c"})  # by name, without the code


async def enqueue_in_an_event_loop() -> None:
    await send.enqueue_async(tenant="acme", to="a@b.c")


def let_a_job_go_first() -> str:
    handle = send.with_options(delay=3600).enqueue(tenant="acme", to="a@b.c")
    handle.edit(now=True, priority="high", why="the customer is on the phone")
    try:
        handle.edit(expires=60)
    except NotEdited as error:  # a worker has taken it meanwhile, or it has ended
        return str(error.outcome)
    return handle.state()  # "ready"


def look_after_a_job() -> list[str]:
    handle = send.with_options(id="order-7").enqueue(tenant="acme", to="a@b.c")
    again = send.with_options(id="order-7").enqueue(tenant="acme", to="a@b.c")
    states = [handle.state()]  # "ready"
    if again.duplicate:  # the job order-7 is live, so the second call changed nothing
        states.append(handle.cancel(why="out of stock"))  # "cancelled"
    states.append(app.handle_by_id("mail", "order-7").state())  # "gone", or from SQL "cancelled"
    return states
