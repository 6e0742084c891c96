"""What worker processes count is summed exactly, bounded, and never falls."""

import multiprocessing

from rq_core.model.job import Claim
from rq_core.process.flow_totals import FlowTotals
from rq_core.worker.flow import OTHER, FlowTable, parts_of
from rq_core.worker.settlement import Settlement


def settlement(task: str, verdict: str = "complete", ran_s: float = 0.02) -> Settlement:
    claim = Claim("mail", "j", "1-1", 1, 0, 0, "{}")
    return Settlement(claim, verdict, task=task, ran_s=ran_s)


def test_each_answer_of_redis_is_an_outcome() -> None:
    table = FlowTable()
    for verdict, answers in (
        ("complete", {}),
        ("complete", {"j": "stale"}),
        ("retry", {"j": "scheduled"}),
        ("retry", {"j": "dead"}),
        ("final", {"j": "dead"}),
        ("final", {"j": "cancelled"}),
        ("rollback", {"j": "ready"}),
        ("rollback", {"j": "gone"}),
    ):
        table.ended([settlement("send", verdict)], answers)

    _, outcomes, ran_s, buckets = parts_of(table.read()["mail", "send"])

    assert outcomes == {
        "succeeded": 1,
        "retried": 1,
        "died": 2,
        "cancelled": 1,
        "rolled_back": 1,
        "refused": 2,
    }
    assert round(ran_s, 6) == 0.16
    assert sum(buckets) == buckets[2] == 8


def test_tasks_beyond_the_table_are_counted_together() -> None:
    table = FlowTable(rows=3)
    for n in range(6):
        table.ended([settlement(f"t{n}")], {})

    rows = {key: parts_of(row)[1]["succeeded"] for key, row in table.read().items()}

    assert rows == {("mail", "t0"): 1, ("mail", "t1"): 1, (OTHER, OTHER): 4}


def _count_for_ever(table: FlowTable) -> None:
    while True:
        table.claimed("mail", 1)


def test_what_a_killed_process_counted_stays() -> None:
    context, totals = multiprocessing.get_context("spawn"), FlowTotals()

    def claims() -> float:
        return sum(parts_of(row)[0] for row in totals.sums().values())

    table = FlowTable(context)
    totals.join(0, table)
    process = context.Process(target=_count_for_ever, args=(table,))
    process.start()
    seen = [claims()]
    while seen[-1] < 1_000:
        seen.append(claims())
    process.kill()
    process.join(10)
    process.close()
    before = claims()
    totals.depart(0, "died")
    totals.join(0, FlowTable(context))

    assert seen == sorted(seen)
    assert claims() == before >= 1_000
    assert (totals.processes, totals.replaced) == (1, {"retired": 0, "died": 1})
