import asyncio

from rq_core import App, current_job

app = App()
STORE_S = 1.0


@app.task(queue="imports")
async def import_rows(rows: list[str]) -> None:
    job = current_job()
    for number, row in enumerate(rows, 1):
        await asyncio.sleep(STORE_S)  # Here the row would be stored.
        job.progress(number, len(rows), f"row {row}")
        job.emit(f"{row} is stored")


def follow(job_id: str, after: int = 0) -> int:
    """Print what the job emits. Return where to go on after a break."""
    job = app.handle_by_id("imports", job_id)
    for chunk in job.stream(after=after):
        if chunk.missed:
            print(f"({chunk.missed} chunks were not kept)")
        if chunk.begins_claim and chunk.claim > 1:
            print(f"(claim {chunk.claim} begins at its first row)")
        print(chunk.text)
        after = chunk.number
    return after
