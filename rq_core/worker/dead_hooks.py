"""Tells hooks of the jobs that died in a line's queues: soon after a death here, and now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from rq_core.app import dead_hooks
from rq_core.app.task import Task
from rq_core.connections.async_client import AsyncClient
from rq_core.worker.queue_group import Line

log = logging.getLogger(__package__)


async def tell_of_deaths(
    client: AsyncClient, tasks: Mapping[str, Task[Any, Any]], line: Line, over: asyncio.Event
) -> None:
    """Hand over the jobs of hooks, if there are hooks among ``tasks``, until it is over."""
    if not any(dead_hooks.hook_name(task) in tasks for task in tasks):
        return
    tellers = {queue: dead_hooks.Teller(client.calls, queue, tasks) for queue in line.queues}
    while not over.is_set():
        more = False
        # Before the looks: they miss a death that is noticed meanwhile.
        line.death.clear()
        for queue, teller in tellers.items():
            try:
                more = await client.run(teller.look()) or more
            except Exception as error:  # noqa: BLE001 - jobs that died are told of later
                log.error("jobs of queue %s that died are told of later: %s", queue, error)  # noqa: TRY400
        if not more:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(dead_hooks.LOOK_EVERY):
                    await line.death.wait()
            # What dies in this millisecond is told of in the next.
            await asyncio.sleep(0.005)
