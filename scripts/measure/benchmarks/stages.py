"""Measures by profiles how a job's processor time is divided among the steps of a producer and a worker.

A profiler slows small functions more than large ones. So the profiles give only the shares, and the total is measured
without a profiler.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from contender import TEXT
from stage import Stage

from rq_core import App
from rq_core.worker import Worker, WorkerOptions

QUEUE = "stages"
CONCURRENCY = 100
STAGES = {
    "arguments: validate and write JSON": "rq_core/app/arguments pydantic json/",
    "ids, records, lanes": (
        "rq_core/model rq_core/app/task rq_core/app/app rq_core/app/options rq_core/app/untyped_enqueue"
        " rq_core/app/limits/lane_assignment rq_core/protocol/calls/enqueue"
    ),
    "calls: slots, commands, answers": (
        "rq_core/protocol rq_core/scripts rq_core/connections/client rq_core/connections/async_client"
    ),
    "connections, RESP": (
        "rq_core/connections /redis/ hiredis socket"
        " asyncio/streams asyncio/selector asyncio/transports selectors"
    ),
    "handlers: start, context, end": (
        "rq_core/worker/execution rq_core/app/handlers/context rq_core/worker/settlement"
        " rq_core/worker/held_jobs contextvars"
    ),
    "turns and leases": "rq_core/worker",
    "asyncio: tasks and callbacks": "asyncio/ _asyncio",
}
"""The steps, each with texts to look for in the path of a file or in the name of a built-in function. The first step
with a matching text counts."""
OTHER = "other"


def measure(stage: Stage, jobs: int) -> dict[str, dict[str, float]]:
    """Return the processor time (µs) per job, by process and step.

    For Redis, return the time of all scripts, and of the most expensive commands in scripts.
    """
    stage.empty()
    app = App(stage.url)

    @app.task(queue=QUEUE, name="noop")
    async def noop(number: int, text: str) -> None:
        """Do nothing."""

    def produce() -> None:
        app.enqueue_many(noop.job(number=number, text=TEXT) for number in range(jobs))

    def drain() -> None:
        async def run() -> None:
            options = WorkerOptions(queues=(QUEUE,), concurrency=CONCURRENCY, burst=True)
            await Worker(app, options).run()
            await app.connections.aclose()

        asyncio.run(run())

    produce()
    drain()
    stage.control.config_resetstat()
    plain = {}
    for name, work in (("producer, bulk", produce), ("worker, drain", drain)):
        began = time.process_time()
        work()
        plain[name] = 1e6 * (time.process_time() - began) / jobs
    commands: Any = stage.control.info("commandstats")
    found = {}
    for name, work in (("producer, bulk", produce), ("worker, drain", drain)):
        found[name] = _shares(work, plain[name])
    app.close()
    calls = {
        name.removeprefix("cmdstat_"): facts["usec"] / jobs
        for name, facts in commands.items()
        if facts["usec"] / jobs >= 0.05 and name != "cmdstat_info"
    }
    scripts = sum(calls.pop(name, 0.0) for name in ("fcall", "evalsha"))
    inner = dict(sorted(calls.items(), key=lambda item: -item[1])[:8])
    rest = scripts - sum(inner.values())
    found["Redis"] = {"scripts, all": scripts, "of it Lua and small commands": rest} | {
        f"of it {name.upper()}": micros for name, micros in inner.items()
    }
    return found


def _shares(work: Callable[[], None], micros: float) -> dict[str, float]:
    # By processor time, so that waiting for the server is no stage.
    profile = cProfile.Profile(time.process_time)
    profile.runcall(work)
    stats: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    spent: defaultdict[str, float] = defaultdict(float)
    for (file, _, function), (_, _, own, _, callers) in stats.items():
        if "select.epoll" in function or "acquire" in function:
            continue  # it waits
        if file != "~":
            spent[_stage(file)] += own
            continue
        # Built-in functions belong to the stage of their caller, unless their own name says it.
        if (stage := _stage(function)) != OTHER:
            spent[stage] += own
            continue
        for (caller, _, _), told in callers.items():
            spent[_stage(caller)] += told[2]
    whole = sum(spent.values()) or 1.0
    return {"all": micros} | {
        f"of it {name}": micros * share / whole
        for name, share in sorted(spent.items(), key=lambda item: -item[1])
    }


def _stage(place: str) -> str:
    found = (name for name, marks in STAGES.items() if any(mark in place for mark in marks.split()))
    return next(found, OTHER)
