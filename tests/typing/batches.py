"""Batch tasks that type checkers must accept or refuse. Only mypy and pyright read this file.

If a checker no longer finds an error, its `type: ignore` is unused, and the check fails.
"""

from dataclasses import dataclass
from typing import Annotated, assert_type

from rq_core import App, AsyncTask, Batch, BatchContext, Depends, Job, JobHandle, Task, current_job

app = App()


@dataclass
class Event:
    table: str


async def session() -> str:
    return "db"


@app.task(queue="events", batch=Batch(500, linger=0.2, per="table"))
async def store(jobs: list[Job[Event]]) -> None:
    assert_type(jobs[0].args, Event)
    assert_type(jobs[0].args.table, str)
    jobs[0].fail("constraint")
    jobs[0].fail(ValueError())
    jobs[0].fail(7)  # type: ignore[arg-type]
    if isinstance(batch := current_job(), BatchContext):
        batch.jobs[0].fail("constraint")


@app.task(queue="more", batch=Batch(500), keep_result=True)
async def double(jobs: list[Job[Event]], db: Annotated[str, Depends(session)]) -> list[int]:
    return [1 for _ in jobs]


@app.task(queue="sync", batch=Batch(500))
def count(jobs: list[Job[Event]]) -> list[int]:
    return [1 for _ in jobs]


@app.task(queue="silent", batch=Batch(500))
def drop(jobs: list[Job[Event]]) -> None: ...


assert_type(store, AsyncTask[[Event], None])
assert_type(double, AsyncTask[[Event], int])
assert_type(count, Task[[Event], int])
assert_type(drop, Task[[Event], None])
assert_type(double.enqueue(Event("t")), JobHandle[int])
assert_type(count(Event("t")), int)
store.enqueue("t")  # type: ignore[arg-type]
store.enqueue()  # type: ignore[call-arg]
store.enqueue([Event("t")])  # type: ignore[arg-type]
app.task(batch=5)  # type: ignore[call-overload]
app.task(batch=Batch(5), isolation="process")  # type: ignore[call-overload]


@app.task(queue="one", batch=Batch(5))  # type: ignore[arg-type]
def no_list(job: Job[Event]) -> None: ...


@app.task(queue="int", batch=Batch(5))  # type: ignore[arg-type]
def counts(jobs: list[Job[Event]]) -> int:
    return len(jobs)
