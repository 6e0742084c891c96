"""The collectors of metrics. The table of metrics has each sample, and an unreachable source hides no other sample."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from rq_core.connections.client import Client
from rq_core.errors import RqCoreError
from rq_core.metrics.collector import QueueCollector, TaskNames, WorkerCollector
from rq_core.metrics.shared import Shared
from rq_core.metrics.table import BY_NAME, FAMILIES, LABELS, TASKS_MAX
from rq_core.model.plugins import EndedClaims, LogOverview
from rq_core.model.recurrence import recurrence
from rq_core.process.claim_totals import FlowTotals
from rq_core.protocol.calls.schedules import Declaration
from rq_core.protocol.reads import worker_registry
from rq_core.protocol.reads.worker_registry import Presence
from rq_core.worker.claim_counters import OTHER, FlowTable
from sql_audit.proof.record import record_proofs
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit.agreement import drain
from tests.kit.inbox import Stage
from tests.kit.schemas import lay_schema
from tests.kit.seed import Seed
from tests.kit.servers import RedisServer, free_port
from tests.metrics.scrape import exposition, parsed, total, value
from tests.metrics.test_flow import settlement

TENANT = "acme-gmbh"


@pytest.fixture
def seed(redis_url: str) -> Iterator[Seed]:
    with Seed(redis_url, real_clock=True) as made:
        yield made


@pytest.fixture
def database(audit_url: str) -> Iterator[Database]:
    database = Database(audit_url)
    lay_schema(database)
    yield database
    database.close()


def address(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


def busy(seed: Seed) -> None:
    """Make a queue that has a sample of every metric, and a tenant's key."""
    seed.cap("tenant", 1)
    seed.cap(f"tenant={TENANT}", 1)
    seed.cap("task=t", 5)
    seed.cap("queue", 50)
    seed.enqueue(*(seed.job(f"x{n}", scopes=["task=t", f"tenant={TENANT}"]) for n in range(3)))
    seed.enqueue("a", "b", "dies", seed.job("later", delay_ms=60_000))
    for claim in seed.claim(7).jobs:
        if claim.id == "dies":
            seed.fail(claim, verdict="final")
        elif claim.id == "a":
            seed.complete(claim)
    seed.claim(1)
    beat = Declaration.of(seed.job("-"), recurrence("beat", every=3600))
    seed.client.run(seed.calls.schedules.put(seed.queue, [beat]))


@pytest.fixture
def collector_at() -> Iterator[Callable[..., QueueCollector]]:
    """Yield a function that makes collectors, which are closed after the test."""
    with contextlib.ExitStack() as stack:

        def make(url: object, **how: str) -> QueueCollector:
            made = QueueCollector.at(str(url), **how)
            return stack.enter_context(contextlib.closing(made))

        yield make


def worked() -> FlowTotals:
    totals, table = FlowTotals(), FlowTable()
    table.claimed("mail", 2)
    table.answered()
    table.turned(0.01)
    table.measured(time.monotonic() + 1, 0.002, 50_000_000)
    waited = settlement("send")
    table.ended([waited._replace(claim=waited.claim._replace(waited_s=2.0))], {})
    table.ended([settlement("send", "final")], {"j": "dead"})
    totals.join(0, table)
    return totals


def test_every_sample_is_in_the_table_of_metrics(
    collector_at: Callable[..., QueueCollector], seed: Seed, database: Database, tmp_path: Path
) -> None:
    seed.enqueue("first")
    drain(seed.client, database)
    busy(seed)
    seed.control.config_set("maxmemory", "1gb")
    says = Presence("web-1", 1, "0.1.0", "c0de", (seed.queue,), 10, 3, 0)
    seed.client.run(worker_registry.announce("rqc", "w-1", says, [seed.queue], ["t"]))
    drain(seed.client, database)
    record_proofs(database, verify(database))
    seed.enqueue("unmirrored")
    inbox = str(tmp_path / "shop.db")
    with contextlib.closing(Stage(inbox, seed.client.url)) as stage:
        stage.insert("row", queue=seed.queue)
    collector = collector_at(seed.client.url, audit_url=address(database), inbox_url=inbox)

    text = exposition(collector) + exposition(WorkerCollector(worked()))
    seed.control.config_set("maxmemory", "0")
    found = parsed(text)

    shown: dict[str, set[frozenset[str]]] = {}
    for name, labels in found:
        plain = name
        for suffix in ("_bucket", "_sum", "_count"):
            plain = plain.removesuffix(suffix) if plain.removesuffix(suffix) in BY_NAME else plain
        shown.setdefault(plain, set()).add(frozenset(dict(labels)) - {"le"})
    assert {name: {frozenset(f.labels)} for name, f in BY_NAME.items()} == shown
    for family in FAMILIES:
        names = {family.name + suffix for suffix in ("", "_bucket", "_sum", "_count")}
        queues = {dict(labels).get("queue") for name, labels in found if name in names}
        for queue in queues:
            of_queue = [k for k in found if k[0] in names and dict(k[1]).get("queue") == queue]
            assert len(of_queue) <= family.samples_max, family
    assert TENANT not in text
    assert value(found, "rqc_up") == value(found, "rqc_audit_up") == 1
    assert value(found, "rqc_inbox_up") == value(found, "rqc_inbox_rows", queue="q") == 1
    assert value(found, "rqc_queue_jobs", queue="q", state="dead") == 1
    assert value(found, "rqc_workers", queue="q") == 1
    assert value(found, "rqc_schedules", queue="q") == 1
    assert value(found, "rqc_schedule_late_seconds", queue="q") == 0
    assert value(found, "rqc_backlog_events", queue="q") == 1
    assert value(found, "rqc_audit_unproven_events", queue="q") == 0
    assert total(found, "rqc_claims_ended_total", outcome="succeeded") == 1
    assert total(found, "rqc_worker_settled_total", outcome="died") == 1
    assert value(found, "rqc_worker_run_seconds_count", queue="mail", task="send") == 2
    assert value(found, "rqc_worker_wait_seconds_sum", queue="mail", task="send") == 2
    assert value(found, "rqc_worker_resident_bytes") == 50_000_000


def test_the_number_of_label_values_is_bounded() -> None:
    assert {label for family in FAMILIES for label in family.labels} == LABELS
    tasks = TaskNames()

    labels = [tasks.of(f"t{n}") for n in range(TASKS_MAX + 5)]

    assert labels[TASKS_MAX - 1 :] == [f"t{TASKS_MAX - 1}", *[OTHER] * 5]
    assert tasks.of("t3") == "t3"


def test_registering_a_collector_sends_no_request(
    collector_at: Callable[..., QueueCollector],
) -> None:
    registry = CollectorRegistry(auto_describe=True)

    registry.register(collector_at(f"redis://127.0.0.1:{free_port()}/0"))
    registry.register(WorkerCollector(FlowTotals()))


@pytest.mark.alone
@pytest.mark.parametrize("how", ["closed", "frozen"])
def test_metrics_report_an_unreachable_server_within_two_seconds(
    collector_at: Callable[..., QueueCollector], start_redis: Callable[..., RedisServer], how: str
) -> None:
    server = start_redis()
    collector = collector_at(server.url)
    assert value(parsed(exposition(collector)), "rqc_up") == 1
    if how == "frozen":
        server.freeze()
    else:
        server.kill()
    collector._overview._until = float("-inf")

    began = time.monotonic()
    found = parsed(exposition(collector))
    took_s = time.monotonic() - began

    assert value(found, "rqc_up") == 0
    assert [name for name, _ in found if name.startswith("rqc_queue")] == []
    assert took_s < 2
    if how == "frozen":
        server.thaw()


def test_queue_metrics_are_complete_while_the_database_is_unreachable(
    collector_at: Callable[..., QueueCollector], seed: Seed
) -> None:
    seed.enqueue("a", "b")
    url = f"postgresql://nobody@127.0.0.1:{free_port()}/none"

    found = parsed(exposition(collector_at(seed.client.url, audit_url=url)))

    assert (value(found, "rqc_up"), value(found, "rqc_audit_up")) == (1, 0)
    assert value(found, "rqc_queue_jobs", queue="q", state="ready") == 2


def test_a_hanging_database_does_not_delay_the_queue_metrics(
    collector_at: Callable[..., QueueCollector], seed: Seed
) -> None:
    seed.enqueue("a")
    collector = collector_at(seed.client.url)
    with Client(str(seed.client.url)) as client:

        def hang() -> None:
            client.run(client.calls.delivery.ask([["BLPOP", "never", 30]]))

        late = Shared(hang, lambda: RqCoreError("late"), within_s=0.05)
        collector._log = late  # type: ignore[assignment]
        found = parsed(exposition(collector))
        seed.control.rpush("never", "x")
        late._within_s = 10
        late.close()

    assert (value(found, "rqc_up"), value(found, "rqc_audit_up")) == (1, 0)


@pytest.mark.slow
@pytest.mark.alone
def test_hanging_redis_and_sql_are_reported_within_two_seconds(
    collector_at: Callable[..., QueueCollector], seed: Seed
) -> None:
    collector = collector_at(seed.client.url)
    goes_on = threading.Event()

    def late() -> RqCoreError:
        return RqCoreError("late")

    collector._overview = Shared(goes_on.wait, late)  # type: ignore[assignment]
    collector._log = Shared(goes_on.wait, late)  # type: ignore[assignment]

    began = time.monotonic()
    found = parsed(exposition(collector))
    took_s = time.monotonic() - began
    goes_on.set()

    assert (value(found, "rqc_up"), value(found, "rqc_audit_up")) == (0, 0)
    assert took_s < 2


def test_an_unexpected_error_of_the_log_leaves_the_queue_metrics_complete(
    collector_at: Callable[..., QueueCollector], seed: Seed, caplog: pytest.LogCaptureFixture
) -> None:
    seed.enqueue("a")
    collector = collector_at(seed.client.url)

    def fail() -> LogOverview:
        raise ZeroDivisionError("planted")

    collector._log = Shared(fail, lambda: RqCoreError("late"))

    found = parsed(exposition(collector))

    assert (value(found, "rqc_up"), value(found, "rqc_audit_up")) == (1, 0)
    assert "planted" in caplog.text


def test_invalid_names_become_readable_labels(
    collector_at: Callable[..., QueueCollector], seed: Seed
) -> None:
    seed.enqueue("a")
    seed.control.sadd("rqc:queues", b"\xff\x1b[31m\n", b'"} 1\nrqc_up 0\n')
    collector = collector_at(seed.client.url)
    hostile = LogOverview((), (EndedClaims("q", "\udcff\n\x1b", "succeeded", 3, 0, 0),))
    collector._log = Shared(lambda: hostile, lambda: RqCoreError("late"))

    text = exposition(collector)

    found = parsed(text)
    assert value(found, "rqc_up") == 1
    assert total(found, "rqc_queue_jobs", state="ready") == 1
    assert total(found, "rqc_claims_ended_total") == 3
    assert all(line.isprintable() for line in text.splitlines())


def test_the_published_lag_of_a_blocked_event_loop_grows_without_a_new_measurement() -> None:
    totals, table = FlowTotals(), FlowTable()
    table.answered()
    table.measured(time.monotonic() - 60, 0.001, 1)
    totals.join(0, table)

    found = parsed(exposition(WorkerCollector(totals)))

    assert 60 <= (value(found, "rqc_worker_loop_lag_seconds") or 0) < 90


def test_a_damaged_queue_is_reported(
    collector_at: Callable[..., QueueCollector], seed: Seed
) -> None:
    seed.enqueue("a")
    seed.of("other").enqueue("b")
    seed.control.delete(seed.keys("dead"))
    seed.control.set(seed.keys("dead"), "x")

    found = parsed(exposition(collector_at(seed.client.url)))

    assert value(found, "rqc_queue_unreadable", queue="q") == 1
    assert value(found, "rqc_queue_jobs", queue="other", state="ready") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "imported",
    ["rq_core", "rq_core.cli.commands.worker", "rq_core.process.serve", "rq_core.worker"],
)
def test_modules_that_do_not_need_prometheus_client_do_not_import_it(imported: str) -> None:
    code = (
        f"import sys, {imported}; from rq_core.metrics.page import worker_page; "
        "print([name for name in sys.modules if name.startswith('prometheus_client')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_without_prometheus_client_the_error_names_the_package_to_install() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from rq_core.metrics.page import worker_page\n"
        "from rq_core.process.claim_totals import FlowTotals\n"
        "print(*worker_page(FlowTotals())())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith("501 text/plain")
    assert "pip install 'rq-core[metrics]'" in done.stdout


def test_a_log_with_an_invalid_number_leaves_the_queue_metrics_complete(
    collector_at: Callable[..., QueueCollector], valkey_url: str, sqlite_url: str
) -> None:
    """Checks SQLite, where a column of numbers accepts text."""
    with (
        Seed(valkey_url, real_clock=True) as seed,
        contextlib.closing(Database(sqlite_url)) as database,
        contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as forger,
    ):
        lay_schema(database)
        seed.enqueue("a")
        drain(seed.client, database)
        forger.execute("UPDATE mirror_cursor SET events = 'many'")
        forger.commit()

    found = parsed(exposition(collector_at(valkey_url, audit_url=sqlite_url)))

    assert (value(found, "rqc_up"), value(found, "rqc_audit_up")) == (1, 0)
