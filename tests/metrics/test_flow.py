"""The counts of worker processes. A reader's sums are exact, the number of counts is bounded, and no count falls."""

import ctypes
import math
import multiprocessing
import random
import sys
from bisect import bisect_left
from collections import Counter
from types import FrameType
from typing import Any

from rq_core.metrics.collector import WorkerCollector
from rq_core.model.job import Claim
from rq_core.process.claim_totals import FlowTotals
from rq_core.worker.claim_counters import BOUNDS_S, OTHER, FlowTable, parts_of
from rq_core.worker.settlement import NOT_RUN, Settlement
from tests.metrics.scrape import exposition

STEPS_MAX = 50
"""The highest number of Python's bytecode instructions with which one job is counted."""


def settlement(task: str, verdict: str = "complete", ran_s: float = 0.02) -> Settlement:
    claim = Claim("mail", "j", "1-1", 1, 0, 0, "{}")
    return Settlement(claim, verdict, task=task, ran_s=ran_s)


def test_each_answer_of_redis_to_a_settlement_is_counted_as_an_outcome() -> None:
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
        ("park", {"j": "parked"}),
        ("park", {"j": "ready"}),
    ):
        table.ended([settlement("send", verdict)], answers)

    parts = parts_of(table.read()["mail", "send"])

    assert parts.outcomes == {
        "succeeded": 1,
        "retried": 1,
        "died": 2,
        "cancelled": 1,
        "rolled_back": 1,
        "refused": 2,
        "parked": 2,
    }
    assert round(parts.ran_s, 6) == 0.2
    assert sum(parts.runs) == parts.runs[2] == 10
    assert sum(parts.waits) == 0


def test_tasks_beyond_the_number_of_rows_in_the_table_are_counted_together() -> None:
    table = FlowTable(rows=3)
    for n in range(6):
        table.ended([settlement(f"t{n}")], {})

    rows = {key: parts_of(row).outcomes["succeeded"] for key, row in table.read().items()}

    assert rows == {("mail", "t0"): 1, ("mail", "t1"): 1, (OTHER, OTHER): 4}


def test_a_job_without_a_known_waiting_time_is_not_counted_in_the_waiting_times() -> None:
    table = FlowTable()
    known = settlement("send")
    for waited_s in (0.3, 7_300.0):
        claim = known.claim._replace(waited_s=waited_s)
        table.ended([known._replace(claim=claim)], {})
    table.ended([known, known._replace(claim=claim, task=NOT_RUN)], {})

    parts = parts_of(table.read()["mail", "send"])

    assert parts.waited_s == 7_300.3
    assert [at for at, count in enumerate(parts.waits) if count] == [
        bisect_left(BOUNDS_S, 0.3),
        len(BOUNDS_S),
    ]
    assert sum(parts_of(table.read()["mail", NOT_RUN]).waits) == 0


def test_waits_of_jobs_that_are_settled_together_are_counted_separately() -> None:
    table, known = FlowTable(), settlement("send")
    waits = [0.0, 0.004, 0.005, 0.3, 0.31, 0.0051, 7_300.0, 9_999.0, 0.0]

    table.ended([known._replace(claim=known.claim._replace(waited_s=each)) for each in waits], {})

    counted = dict(enumerate(parts_of(table.read()["mail", "send"]).waits))
    wanted = Counter(bisect_left(BOUNDS_S, each) for each in waits)
    assert {at: count for at, count in counted.items() if count} == wanted


def test_reading_a_table_of_counts_with_random_bytes_raises_no_error() -> None:
    """Checks a table that a handler's native code overwrote, or that a killed process wrote in part."""
    rng, totals = random.Random(24), FlowTotals()
    for place in range(200):
        table = FlowTable(rows=3)
        table.claimed("mail", 1)
        table.ended([settlement("send")], {})
        memory = rng.choice([table._numbers, table._names])
        size = ctypes.sizeof(memory)
        start = rng.randrange(size)
        ctypes.memmove(ctypes.addressof(memory) + start, rng.randbytes(64), min(64, size - start))

        totals.join(place, table)
        totals.depart(place, "died")

    sums = totals.sums()
    assert all(math.isfinite(number) and number >= 0 for row in sums.values() for number in row)
    assert ("mail", "send") in sums
    assert exposition(WorkerCollector(totals))


def test_exchanges_with_redis_stay_counted_after_their_process_has_ended() -> None:
    totals, table = FlowTotals(), FlowTable()
    totals.join(0, table)
    table.turned(0.5)
    table.turned(1.0)
    before = totals.turns()
    totals.depart(0, "died")

    assert before == totals.turns() == (2, 1.5)
    assert totals.vitals() == []


def _count_for_ever(table: FlowTable) -> None:
    while True:
        table.claimed("mail", 1)


def test_the_counts_of_a_killed_process_are_kept() -> None:
    context, totals = multiprocessing.get_context("spawn"), FlowTotals()

    def claims() -> float:
        return sum(parts_of(row).claims for row in totals.sums().values())

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


def test_counting_a_job_takes_few_python_bytecode_steps() -> None:
    """Checks the number of bytecode instructions per job. A loop of a hundred made the worker 15 % slower."""
    table = FlowTable()
    table.ended([settlement("send")], {})

    def steps(jobs: int) -> int:
        settled, count = [settlement("send") for _ in range(jobs)], 0

        def note(frame: FrameType, event: str, _: object) -> Any:
            nonlocal count
            frame.f_trace_opcodes = True
            count += event == "opcode"
            return note

        sys.settrace(note)
        try:
            table.ended(settled, {})
        finally:
            sys.settrace(None)
        return count

    assert steps(200) - steps(100) <= 100 * STEPS_MAX
