"""Runs workers in the test's own process."""

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
    """Run the worker during the block. Then stop the worker, and wait until it ends."""
    task = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(END_S):
            await task


@contextlib.asynccontextmanager
async def working(app: App, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker of the app during the block. Then stop it, and close the connections of the app."""
    worker = Worker(app, WorkerOptions(**options))
    try:
        async with at_work(worker):
            yield worker
    finally:
        await app.connections.aclose()
