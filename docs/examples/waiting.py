from decimal import Decimal

from rq_core import App, Failed, JobGone, JobHandle, NoResult, RetryPolicy, Succeeded, WaitTimeout

app = App(audit="sqlite:///audit.db")


@app.task(queue="reports", timeout=20, keep_result=3600, retry=RetryPolicy(max_attempts=1))
def total(month: str) -> Decimal:
    if len(month) != len("2026-11"):
        raise ValueError(f"{month} is no month")
    return Decimal("12.50")


def total_now(month: str) -> Decimal | None:
    try:
        return total.enqueue(month).result(timeout=30)
    except NoResult as error:  # the job failed, was cancelled, did not end in time, …
        print(error)
        return None


def tell(handle: JobHandle[Decimal]) -> str:
    try:
        outcome = handle.wait(timeout=30)
    except WaitTimeout:
        return f"job {handle.id} is still at work"
    match outcome:
        case Succeeded():
            return f"total: {outcome.value}"
        case Failed(error=error):
            return f"failed: {error}"
        case other:
            return type(other).__name__


def total_year(year: int) -> Decimal:
    jobs = app.enqueue_many(total.job(f"{year}-{month:02}") for month in range(1, 13))
    done = app.as_completed(jobs, timeout=300)
    return sum((handle.result(0) for handle in done), Decimal(0))


async def answer(month: str) -> tuple[int, str]:
    """Return the status and the text of a web server's answer."""
    return await answer_of(await total.enqueue_async(month))


async def answer_again(job_id: str) -> tuple[int, str]:
    """Return the status and the text of the answer to a client that asks again."""
    return await answer_of(app.handle_by_id("reports", job_id))


async def answer_of(handle: JobHandle[Decimal]) -> tuple[int, str]:
    try:
        return 200, str(await handle.result_async(timeout=25))
    except WaitTimeout:
        return 202, handle.id  # the client asks again, with this id
    except JobGone as error:  # no such job, or its result is no longer kept
        return 404, str(error)
    except NoResult as error:
        return 500, str(error)
