"""Steps of durable jobs: what a handler has saved under names is not done again after a crash.

    async def order(order_id: int) -> Receipt:
        job = durable()
        charge = await job.step("charge", charge_card, order_id)
        return await job.step("receipt", make_receipt, charge)

- ``handles``: ``durable`` and ``durable_sync``, and the objects that they return.
- ``steps``: one run of a durable job: which steps it knows, runs and saves.
- ``home``: what a worker gives the run: saving, loading, and whether its lease holds.
- ``step_values``: what steps return, as JSON and back.
"""
