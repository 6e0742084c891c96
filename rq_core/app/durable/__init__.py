"""Durable jobs: steps, sleeps and waits. A handler saves the result of each step under a name. After a crash, a saved
step is not run again.

    async def order(order_id: int) -> Receipt:
        job = durable()
        charge = await job.step("charge", charge_card, order_id)
        return await job.step("receipt", make_receipt, charge)

- ``handles``: ``durable`` and ``durable_sync``, and the objects that they return.
- ``children``: one run of a durable job that runs other jobs, and waits for their ends.
- ``items``: the calls of a ``map``, and the items that it returns.
- ``entry_names``: the names of entries.
- ``moments``: converts the times of sleeps and waits.
- ``steps``: one run of a durable job, which loads, runs and saves steps.
- ``home``: the protocol between a run and its worker, which saves and loads steps and checks the lease.
- ``step_calls``: calls the functions of steps, with their own dependencies.
- ``step_values``: converts the values that steps return to JSON and back.
"""
