"""The no-op job of the benchmarks: an int and a 40-byte string. One queue per way to be capped."""

from __future__ import annotations

from typing import Final

from rq_core import App, Cap

NEVER: Final = 1_000_000
"""A cap that is never reached."""
TENANTS: Final = 1_000

app = App()


@app.task(queue="bench")
async def noop_async(number: int, text: str) -> None:
    """Do nothing, on the event loop."""


@app.task(queue="bench")
def noop_thread(number: int, text: str) -> None:
    """Do nothing, in a thread."""


@app.task(queue="bench-one-cap", caps=[Cap(NEVER)])
async def noop_one_cap(number: int, text: str) -> None:
    """Counted by a cap that is never reached."""


@app.task(
    queue="bench-two-caps",
    caps=[Cap(NEVER), Cap(NEVER, per=lambda number, **_: number % TENANTS, name="roomy")],
)
async def noop_two_caps(number: int, text: str) -> None:
    """Counted by two caps that are never reached, one of them of 1,000 tenants."""


@app.task(
    queue="bench-binding",
    caps=[Cap(100), Cap(1, per=lambda number, **_: number * 7919 % 10_007 % TENANTS, name="tight")],
)
async def noop_binding(number: int, text: str) -> None:
    """One at a time of each of 1,000 tenants, and as many in all as the worker has places: both always bind."""


CAPPED: Final = {
    "one_cap": noop_one_cap,
    "two_caps": noop_two_caps,
    "binding": noop_binding,
}
