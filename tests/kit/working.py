"""Runs workers in the test's own process during a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rq_core import App
from rq_core.worker import Worker, WorkerOptions

END_S = 30.0


@contextlib.asynccontextmanager
async def at_work(worker: Worker) -> AsyncIterator[None]:
    """Run the worker during the block. Afterwards the worker is stopped and must end."""
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(END_S):
            await task


@contextlib.asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker in the same way as `at_work`, and then close the connections of the app."""
    worker = Worker(app, WorkerOptions(**options))
    try:
        async with at_work(worker):
            yield worker
    finally:
        await app.connections.aclose()
