"""Children of durable jobs that type checkers must accept or refuse. Only mypy and pyright read this file.

If a checker no longer finds an error, its `type: ignore` is unused, and the check fails.
"""

from typing import assert_type

from rq_core import App, Item, Items, JobCall, durable, durable_sync

app = App()


@app.task
def render(n: int) -> str:
    return str(n)


@app.task
async def count(text: str) -> int:
    return len(text)


@app.task
async def order(order_id: int) -> None:
    job = durable()
    assert_type(render.call(7), JobCall[str])
    assert_type(render.with_options(queue="pages").call(7), JobCall[str])
    assert_type(await job.run(render.call(order_id)), str)
    assert_type(await job.run(count.call("a"), name="letters"), int)
    pages = await job.map("pages", (render.call(n) for n in range(200)), min_success=0.95)
    assert_type(pages, Items[str])
    assert_type(pages[0], Item[str])
    assert_type(pages[0].value, str)
    assert_type(pages.values(), list[str])
    assert_type(await job.map("pages", [count.call("a")], min_success=1), Items[int])
    render.call("7")  # type: ignore[arg-type]
    await job.run(render.job(7))  # type: ignore[arg-type]
    await job.map([render.call(7)], "pages")  # type: ignore[arg-type]


@app.task
def order_sync() -> None:
    job = durable_sync()
    assert_type(job.run(render.call(7)), str)
    assert_type(job.map("pages", [render.call(7)]), Items[str])
