import sqlite3
from dataclasses import dataclass

from rq_core import App, Batch, Job, RetryPolicy

app = App()
database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
database.execute("CREATE TABLE clicks (url TEXT NOT NULL, seconds INTEGER CHECK (seconds > 0))")


@dataclass
class Event:
    table: str
    url: str
    seconds: int = 1


@app.task(
    queue="events",
    batch=Batch(500, linger=0.2, per="table", on_error="halve"),
    retry=RetryPolicy(max_attempts=2),
)
async def store(jobs: list[Job[Event]]) -> None:
    for job in jobs:
        if not job.args.url.startswith("https://"):
            job.fail("not a page of ours")  # this job fails, and the others are stored
    rows = [(job.args.url, job.args.seconds) for job in jobs if not job.failure]
    database.execute("BEGIN")
    try:
        database.executemany("INSERT INTO clicks VALUES (?, ?)", rows)
    except sqlite3.Error:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


def count(url: str) -> None:
    store.enqueue(Event("clicks", url))
