from typing import Any

from rq_core import RESULT, App, FlowRun, RetryPolicy, chain, group

app = App()
app.enable_flows()
ONCE = RetryPolicy(max_attempts=1)


@app.task(queue="pages")
def fetch(month: str) -> list[int]:
    return [len(month), 20, 30]


@app.task(queue="pages", retry=ONCE)
def render(page: int, rows: list[int]) -> str:
    if page == 7:
        raise ValueError("page 7 is too wide")
    return f"page {page} of {len(rows)} rows"


@app.task(queue="reports")
def merge(pages: list[str]) -> str:
    return f"{len(pages)} pages"


@app.task(queue="reports")
def tell(text: str) -> str:
    return f"sent: {text}"


def report_in_order(month: str) -> FlowRun[Any]:
    flow = chain(fetch.call(month), render.call(1, RESULT), tell.call(RESULT))
    return flow.enqueue(queue="reports", id=f"one-page-{month}")


def report_of_parts(rows: list[int]) -> FlowRun[Any]:
    pages = group(render.call(page, rows) for page in range(5))
    return pages.then(merge.call(RESULT), tell.call(RESULT)).enqueue(queue="reports")


def monthly(month: str) -> FlowRun[Any]:
    with app.flow("monthly", on_failure="drain") as flow:
        rows = flow.add(fetch.call(month))
        pages = flow.map([render.call(page, rows.value) for page in range(10)], min_success=0.9)
        merged = flow.add(merge.call(pages.values))
        flow.add(tell.call(merged.value))
    return flow.enqueue(queue="reports", id=f"monthly-{month}")
