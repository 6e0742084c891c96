"""Redis is compared with SQL while a mirror works, or with a database that lacks the last events.

`audit verify --redis` and `doctor --audit` read SQL first, then Redis. The mirror commits and trims between the two
reads. The comparison finds planted differences, and reports no false difference.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.reads import whole_queue
from rq_core.protocol.reads.reads import Reads
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.schemas import copied

PAGES_BETWEEN = 7
"""The fixture does its work before every seventh page is read."""


@pytest.fixture
def fleet(client: Client, database: Database) -> Fleet:
    """Return the fleet of a mirrored queue."""
    fleet = Fleet(client, 5, lanes=False)
    fleet.run(60)
    auditlog.drain(Mirror(Outbox(client), database, QUEUE))
    return fleet


@pytest.fixture(params=["at once", "in pages"])
def mirrored_between(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    client: Client,
    database: Database,
    fleet: Fleet,
) -> Callable[[Callable[[], None]], None]:
    """Return a function ``install(happens)``. Once it is called, ``happens`` runs in each comparison of SQL with Redis.

    It runs after the read of SQL, or between two pages of Redis. Then the new events are mirrored and trimmed.
    """
    look, page = Reads.snapshot, whole_queue._page
    calls = itertools.count(1)

    def install(happens: Callable[[], None]) -> None:
        def work() -> None:
            happens()
            auditlog.drain(Mirror(Outbox(client), database, QUEUE))

        def snapshot(self: Reads, queue: str) -> Plan[whole_queue.Snapshot]:
            work()
            return (yield from look(self, queue))

        def between(*args: Any) -> list[Any]:
            if next(calls) % PAGES_BETWEEN == 0:
                work()
            return page(*args)

        if request.param == "at once":
            monkeypatch.setattr(Reads, "snapshot", snapshot)
            return
        monkeypatch.setattr(whole_queue, "_page", between)
        for name, number in {"AT_ONCE_MAX": 0, "PAGE": 5, "PAGE_FIRST": 5}.items():
            monkeypatch.setattr(whole_queue, name, number)

    return install


def verify(database: Database, redis_url: str) -> Result:
    url = database.address.render_as_string(hide_password=False)
    return audit("verify", "--json", "--audit", url, "--redis", redis_url)


def doctor(database: Database, redis_url: str) -> Result:
    url = database.address.render_as_string(hide_password=False)
    given = ["doctor", QUEUE, "--redis", redis_url, "--audit", url]
    return CliRunner().invoke(root, given)


@pytest.mark.slow
def test_verify_and_doctor_find_nothing_wrong_in_a_busy_queue_while_the_mirror_trims(
    database: Database,
    fleet: Fleet,
    mirrored_between: Callable[[Callable[[], None]], None],
    valkey_url: str,
) -> None:
    mirrored_between(lambda: fleet.run(8))

    results = [
        each
        for _ in range(4)
        for each in (verify(database, valkey_url), doctor(database, valkey_url))
    ]

    assert [each.exit_code for each in results] == [0] * 8, [each.output for each in results]


def test_a_deleted_job_is_found_while_the_mirror_trims(
    client: Client,
    database: Database,
    fleet: Fleet,
    mirrored_between: Callable[[Callable[[], None]], None],
    valkey_url: str,
) -> None:
    fleet.enqueue()
    lost = fleet.known[-1]
    mirrored_between(fleet.enqueue)
    keys = queue_keys(QUEUE)
    taken = [["HDEL", keys(name), lost] for name in ("state", "jobs")]
    client.run(client.calls.delivery.ask(taken))

    verified, examined = verify(database, valkey_url), doctor(database, valkey_url)

    assert (verified.exit_code, examined.exit_code) == (1, 1)
    assert lost in verified.output
    assert f"lost: job {lost} is ready by the log, and Redis does not have it" in examined.output


def test_an_epoch_that_begins_during_a_comparison_causes_no_finding(
    client: Client,
    database: Database,
    fleet: Fleet,
    mirrored_between: Callable[[Callable[[], None]], None],
) -> None:
    once = [["DEL", f"rqc:{{{QUEUE}}}:outbox"]]

    def forget() -> None:
        if once:
            client.run(client.calls.delivery.ask([once.pop()]))
        fleet.run(3)

    mirrored_between(forget)

    assert compare(client, database, QUEUE) == ([], [])


def test_verify_is_unknown_for_a_database_that_lacks_trimmed_events(
    client: Client, database: Database, fleet: Fleet, valkey_url: str
) -> None:
    """Checks a lagging standby, and a backup that no mirror has used. Both lack events that Redis has trimmed."""
    with copied(database) as behind:
        fleet.run(20)
        auditlog.drain(Mirror(Outbox(client), database, QUEUE))

        verified, examined = verify(behind, valkey_url), doctor(behind, valkey_url)
        level = verify(database, valkey_url)

    assert (verified.exit_code, examined.exit_code, level.exit_code) == (2, 2, 0)
    (told,) = json.loads(verified.stdout)["queues"].values()
    assert "standby that lags" in told["unknown"][0]["says"]
    assert "cannot tell: this database has entries up to" in examined.output
    assert "drift" not in examined.output


def test_an_epoch_that_is_not_mirrored_yet_causes_a_note_and_no_violation(
    client: Client, database: Database, fleet: Fleet
) -> None:
    client.run(client.calls.delivery.ask([["DEL", f"rqc:{{{QUEUE}}}:outbox"]]))
    fleet.run(5)

    violations, (note,) = compare(client, database, QUEUE)

    assert violations == []
    assert note.says.startswith("Redis has begun an epoch at ")


@pytest.mark.parametrize("detached", [True, False])
def test_a_queue_that_is_not_mirrored_into_the_database_causes_only_a_note(
    client: Client, database: Database, fleet: Fleet, detached: bool
) -> None:
    meta = f"rqc:{{{QUEUE}}}:meta"
    change = ["HSET", meta, "audit", "off"] if detached else ["HSET", meta, "audit_id", "other"]
    client.run(client.calls.delivery.ask([change]))

    violations, (note,) = compare(client, database, QUEUE)

    assert violations == []
    assert "mirrored" in note.says


@pytest.mark.slow
def test_kept_results_and_remembered_ids_of_a_busy_queue_cause_no_findings(
    client: Client,
    database: Database,
    fleet: Fleet,
    mirrored_between: Callable[[Callable[[], None]], None],
    valkey_url: str,
) -> None:
    """Checks ids that are used several times, each time with another retention and another task."""
    rounds = itertools.count(1)

    def again() -> None:
        n = next(rounds)
        ties = ties_of(keep_ms=n * 1_000_000, window_ms=5 * n, unique="keep")
        jobs = [
            NewJob("a", QUEUE, profile(f"task-{n}"), "{}", ties=ties, name=f"{n}/x=1"),
            NewJob("b", QUEUE, profile(f"task-{n}"), "{}", ties=ties_of(keep_ms=n * 1_000_000)),
        ]
        client.run(client.calls.enqueue.many(jobs))
        client.run(client.calls.admin.cancel(QUEUE, ["b"]))
        held = [
            (each.id, each.fence)
            for _ in range(2)
            for each in client.run(claims.claim(QUEUE, "w-9", 100)).jobs
        ]
        values = {
            at: pack_result(f'"{n}"') for at, (job_id, _) in enumerate(held, 1) if job_id == "a"
        }
        client.run(claims.complete(QUEUE, "w-9", held, values))

    mirrored_between(again)

    results = [
        each
        for _ in range(3)
        for each in (verify(database, valkey_url), doctor(database, valkey_url))
    ]
    assert [each.exit_code for each in results] == [0] * 6, results[-1].output
