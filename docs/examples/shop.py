import os
import signal
from pathlib import Path

from rq_core import App, Cap, RetryPolicy, current_job

app = App()  # the server that RQ_CORE_REDIS_URL names
app.queue("shop", lease=2)  # seconds; with the default, 30, chapter 4 would take longer


@app.task(queue="shop")
def confirm(order: int) -> None:
    print(f"order {order} is confirmed")


@app.task(queue="shop", retry=RetryPolicy(max_attempts=3, backoff="fixed", base=1, jitter="none"))
def ship(order: int) -> None:
    if Path("carrier-is-down").exists():
        raise ConnectionError("the carrier does not answer")
    print(f"order {order} is shipped in claim {current_job().claim}")


@app.task(queue="shop", caps=[Cap(1, per="customer")])
async def pack(order: int, customer: str) -> None:
    print(f"order {order} of {customer} is packed")


@app.task(queue="shop")
def weigh(order: int) -> None:
    if Path("power-cut").exists():
        Path("power-cut").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    print(f"order {order} is weighed in claim {current_job().claim}")
