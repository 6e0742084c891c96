from rq_core import App, Failed, JobHandle, RetryPolicy, Succeeded, WaitTimeout

app = App(audit="sqlite:///audit.db")


@app.task(queue="reports", timeout=20, retry=RetryPolicy(max_attempts=1))
def build(month: str) -> None:
    if len(month) != len("2026-11"):
        raise ValueError(f"{month} is no month")


def tell(handle: JobHandle[None]) -> str:
    try:
        outcome = handle.wait(timeout=30)
    except WaitTimeout:
        return f"job {handle.id} is still at work"
    match outcome:
        case Succeeded():
            return "done"
        case Failed(error=error):
            return f"failed: {error}"
        case other:
            return type(other).__name__


def build_one(month: str) -> str:
    return tell(build.enqueue(month))


def build_year(year: int) -> list[str]:
    jobs = app.enqueue_many(build.job(f"{year}-{month:02}") for month in range(1, 13))
    return [tell(handle) for handle in app.as_completed(jobs, timeout=300)]
