from rq_core import App, durable

app = App()


@app.task(queue="parts")
def import_part(first: int, last: int) -> int:
    if first == 300:
        raise ValueError(f"rows {first} to {last} are not readable")
    print(f"rows {first} to {last}")
    return last - first


@app.task(queue="parts")
def report(rows: int) -> str:
    return f"{rows:,} rows are there"


@app.task(queue="imports")
async def import_all(rows: int) -> None:
    job = durable()
    parts = await job.map(
        "parts",
        (import_part.call(first, first + 100) for first in range(0, rows, 100)),
        min_success=0.9,
    )
    for part in parts.failed:
        print(f"part {part.index} failed: {part.error}")
    print(await job.run(report.call(sum(parts.values()))))
