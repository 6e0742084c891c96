"""The lists of `rq_core.views`, read by a program that does not use the command line."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core.cli.root import COMMANDS
from rq_core.model.recurrence import recurrence
from rq_core.model.table.machine import State
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from rq_core.views.lists import LISTS
from rq_core.views.table import Found
from tests.kit.seed import QUEUE, Seed

ASKED: dict[str, tuple[Any, ...]] = {
    "queues": (),
    "workers": ([QUEUE],),
    "jobs": (QUEUE, [State.READY], None, 10),
    "dead": (QUEUE, 10),
    "unique": (QUEUE, None, 10),
    "caps": (QUEUE, 10),
    "schedules": ([QUEUE],),
}


@pytest.fixture
def seed(valkey_url: str) -> Iterator[Seed]:
    with Seed(valkey_url, real_clock=True) as made:
        yield made


@pytest.mark.parametrize("name", LISTS)
def test_each_list_can_be_printed_as_a_table_and_as_json(seed: Seed, name: str) -> None:
    view = LISTS[name]
    seed.enqueue("dies")
    seed.fail(*seed.claim().jobs, verdict="final")
    seed.enqueue("waits", seed.job("named", name="t/n=1"))
    seed.cap("tenant", 1)
    made = Declaration.of(seed.job("-"), recurrence("beat", every=10))
    seed.client.run(seed.client.calls.schedules.put(QUEUE, [made]))
    says = Presence("db-1", 7, "1.0", "c0de", (QUEUE,), 4, 1, 0)
    seed.client.run(worker_registry.announce("rqc", "w-1", says, [QUEUE], ["t"]))

    found: Found[Any] = seed.client.run(view.query(seed.calls, *ASKED[name]))

    assert found.rows
    for row in found.rows:
        assert json.loads(json.dumps(view.document(row)))
        assert len(view.cells(row, seed.now)) == len(view.columns)
    assert {*view.whole, *view.drop} <= {*view.columns}
    assert name in COMMANDS
