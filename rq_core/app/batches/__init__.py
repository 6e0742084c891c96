"""Batch handlers: one call of a handler runs many jobs, and each job keeps its own claim, attempts and result.

    @app.task(queue="events", batch=Batch(500, linger=0.2, per="table"))
    async def store(jobs: list[Job[Event]]) -> None: ...

- ``batch``: the options of a batch task.
- ``jobs``: the jobs that a batch handler receives, and the context of the batch.
- ``shape``: reads the types of arguments and results from a batch handler's annotations.
- ``fields``: checks the arguments of one job of a batch task, and converts them to JSON and back.
"""
