"""The no-op job of the benchmarks: an int and a 40-byte string."""

from __future__ import annotations

from rq_core import App

app = App()


@app.task(queue="bench")
async def noop_async(number: int, text: str) -> None:
    """Do nothing, on the event loop."""


@app.task(queue="bench")
def noop_thread(number: int, text: str) -> None:
    """Do nothing, in a thread."""
