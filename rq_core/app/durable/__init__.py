"""Durable jobs: steps, sleeps and waits. A handler saves the result of each step under a name. After a crash, the next
run of the handler does not call the saved steps again.

    async def order(order_id: int) -> Receipt:
        job = durable()
        charge = await job.step("charge", charge_card, order_id)
        return await job.step("receipt", make_receipt, charge)

In Redis, each step, sleep and wait of a job is an *entry* with a name.

- ``handles``: ``durable`` and ``durable_sync``, and the objects that they return.
- ``children``: one run of a durable job that runs other jobs, and waits for their ends.
- ``items``: the calls of a ``map``, and the items that it returns.
- ``entry_names``: the names of entries.
- ``moments``: converts the times of sleeps and waits.
- ``steps``: one run of a durable job, which loads, runs and saves steps.
- ``parking``: the entries that Redis must have before a job parks.
- ``home``: the protocol by which a run uses its worker.
- ``step_calls``: calls the functions of steps, with their own dependencies.
- ``step_values``: converts the values that steps return to JSON and back.
"""
