"""A naive relay: it pushes rows to Redis, and then deletes them.

If it is killed in between, its jobs run twice. So this relay shows that the rig can find errors.
"""

from __future__ import annotations

from rq_core.model.packed_job import unpack
from tests.kit.inbox import QUEUE, OnStep, Stage


def hand_over(stage: Stage, on_step: OnStep) -> bool:
    """Hand over some rows. Returns false if the inbox was empty."""
    with stage.session.transaction() as transaction:
        rows = transaction.choose(QUEUE, 250)
    if not rows:
        return False
    jobs = [
        unpack(row.packed or "{}", queue=QUEUE, job_id=row.job_id, task=row.task, args=row.args)
        for row in rows
    ]
    on_step("send")
    stage.client.run(stage.client.calls.enqueue.many(jobs))
    on_step("answered")
    with stage.session.transaction() as transaction:
        transaction.delete(QUEUE, [row.id for row in rows])
    return True
