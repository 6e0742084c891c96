"""`audit verify` on events of the real scripts. The queue has caps and rates, and Redis is compared with SQL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import text

from rq_core.cli.root import root
from rq_core.connections.client import Client
from rq_core.model.job import NewJob, Profile, ties_of
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.protocol.calls import claims
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries.history import audit_id
from sql_audit.store.connection.copy import EventRows
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.switch_off import switch_off
from tests.audit.pruning import DAY, prune_at
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.fleet import QUEUE, Fleet
from tests.kit.liar import forge_chain, lying


@pytest.fixture
def mirror_all(client: Client, database: Database) -> Callable[[], int]:
    limits = BatchLimits(events=100)

    def run() -> int:
        return auditlog.drain(Mirror(Outbox(client), database, QUEUE, limits=limits))

    return run


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.slow
def test_verify_proves_the_log_of_the_real_scripts(
    client: Client, database: Database, mirror_all: Callable[[], int], seed: int
) -> None:
    fleet = Fleet(client, seed, ties=True)
    fleet.set_cap("task=send", "3")
    fleet.set_cap("tenant", "2")
    fleet.run(300)
    mirror_all()
    fleet.run(50)

    result = verify(database)
    counts = {
        row["type"]: row["n"]
        for row in auditlog.rows(
            database, "SELECT type, COUNT(*) AS n FROM job_event GROUP BY type"
        )
    }

    assert result.violations == []
    assert result.verdict is LogVerdict.HOLDS, result.queues[QUEUE].notes
    assert counts["claimed"] > 50
    assert counts["edited"] > 3
    assert compare(client, database, QUEUE) == ([], [])
    mirror_all()
    assert verify(database).verdict is LogVerdict.HOLDS
    assert compare(client, database, QUEUE) == ([], [])
    assert auditlog.rows(database, "SELECT 1 FROM job_event WHERE detail LIKE '%value_digest%'")


def test_verify_proves_a_log_that_began_with_a_baseline(
    client: Client, database: Database, mirror_all: Callable[[], int]
) -> None:
    fleet = Fleet(client, 1)
    fleet.set_cap("task=send", "3")
    fleet.run(100)
    outbox = queue_keys(QUEUE, "rqc")("outbox")
    client.run(client.calls.delivery.ask([["XTRIM", outbox, "MAXLEN", "1"]]))
    mirror_all()
    fleet.run(100)
    mirror_all()

    result = verify(database)

    assert result.violations == []
    assert result.verdict is LogVerdict.HOLDS, result.queues[QUEUE].notes


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("FLUSHALL",), "Redis remembered nothing"),
        (("DEL", "rqc:{q}:outbox"), "Redis lost its log"),
    ],
)
def test_verify_reports_lost_events_as_a_note_and_not_as_a_violation(
    client: Client,
    database: Database,
    mirror_all: Callable[[], int],
    command: tuple[str, ...],
    says: str,
) -> None:
    fleet = Fleet(client, 2)
    fleet.set_cap("tenant", "2")
    fleet.run(100)
    mirror_all()
    client.run(client.calls.delivery.ask([list(command)]))
    fleet.held.clear()
    fleet.run(100)
    mirror_all()
    fleet.run(50)
    mirror_all()

    result = verify(database)

    assert result.violations == []
    assert (result.verdict, result.queues[QUEUE].notes) == (LogVerdict.HOLDS, [])
    assert says in result.queues[QUEUE].losses[0].says


@pytest.mark.parametrize("ties", [False, True])
def test_a_difference_after_an_entry_in_quarantine_is_not_reported_as_a_violation(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch, *, ties: bool
) -> None:
    """Checks entries that SQL refused. A difference of a job in these entries is only a note."""
    fleet, real, every = Fleet(client, 1, ties=ties), database.insert_events, 11
    fleet.set_cap("task=send", "3")
    fleet.run(120)

    def insert(connection: Any, rows: list[Any], *rest: Any) -> Any:
        unknown = [(*r[:4], "x", *r[5:]) if r[6] and not r[2] % every else r for r in rows]
        return real(connection, EventRows(unknown), *rest)

    monkeypatch.setattr(database, "insert_events", insert)
    auditlog.drain(Mirror(Outbox(client), database, QUEUE))
    fleet.run(20)

    assert len(auditlog.rows(database, "SELECT 1 FROM quarantine")) > 3
    violations, notes = compare(client, database, QUEUE)
    assert (violations, verify(database).violations) == ([], [])
    assert all("which names it, is in quarantine" in note.says for note in notes)
    gone = next(i for i in fleet.known if not any(i in note.says for note in notes))
    spoil(client, "state", "HSET", gone, "running claim=1 fence=1-1 by=w seq=1 since=1")
    violations, _ = compare(client, database, QUEUE)
    assert {each.job_id for each in violations} >= {gone}, "others are judged as before"


# Redis beside SQL.


TOO_DEEP = f'{{"fence":{"[" * 30_000}{"]" * 30_000}}}'
"""JSON that Python cannot read because it is nested too deep."""


def test_verify_reports_an_event_with_json_that_is_nested_too_deep(
    level: Fleet, client: Client, database: Database
) -> None:
    """Checks that verify does not end with a traceback."""
    with lying(database) as connection:
        connection.execute(text("UPDATE job_event SET detail = :detail"), {"detail": TOO_DEEP})

    url = database.address.render_as_string(hide_password=False)
    told = audit("verify", "--json", "--audit", url)

    assert told.exit_code == 1
    assert "nested too deep" in told.stdout


@pytest.fixture
def level(client: Client, mirror_all: Callable[[], int]) -> Fleet:
    """Return a fleet whose events are mirrored, except the last ones."""
    fleet = Fleet(client, 3, lanes=False)
    fleet.run(60)
    mirror_all()
    fleet.run(10)
    return fleet


@pytest.mark.parametrize(("detail", "why"), [("{bad", "JSONDecodeError"), (TOO_DEEP, "ValueError")])
def test_an_unreadable_row_in_sql_does_not_end_the_comparison(
    level: Fleet, client: Client, database: Database, detail: str, why: str
) -> None:
    """Checks that the comparison returns a note about the row."""
    with database.writing(wait=True) as connection:
        assert connection is not None
        connection.exec_driver_sql("DROP TRIGGER job_event_no_update")
        connection.execute(text("UPDATE job_event SET detail = :detail"), {"detail": detail})
        connection.commit()

    violations, (note,) = compare(client, database, QUEUE)

    assert violations == []
    assert note.says.startswith(f"SQL has a row that cannot be read ({why}: ")


def spoil(client: Client, name: str, verb: str, *rest: Any) -> None:
    key = queue_keys(QUEUE, "rqc")(name)
    client.run(client.calls.delivery.ask([[verb, key, *rest]]))


def differences(client: Client, database: Database) -> list[tuple[str, str]]:
    violations, _ = compare(client, database, QUEUE)
    return [(v.invariant, v.says) for v in violations]


def test_verify_reports_a_job_that_redis_lost_as_drift(
    client: Client, database: Database, level: Fleet
) -> None:
    (ids,) = client.run(client.calls.delivery.ask([["HKEYS", "rqc:{q}:jobs"]]))
    job_id = ids[0]
    assert differences(client, database) == []
    for key in ("state", "jobs"):
        spoil(client, key, "HDEL", job_id)

    found = [
        violation.says
        for violation in compare(client, database, QUEUE)[0]
        if (violation.invariant, violation.job_id) == ("I8", job_id)
    ]
    assert any("by the log, and Redis does not have it" in says for says in found)


def test_verify_reports_an_edited_state_line_as_drift(
    client: Client, database: Database, level: Fleet
) -> None:
    (lines,) = client.run(client.calls.delivery.ask([["HGETALL", "rqc:{q}:state"]]))
    flat = dict(zip(lines[::2], lines[1::2], strict=True)) if isinstance(lines, list) else lines
    job_id, line = next(iter(flat.items()))
    spoil(client, "state", "HSET", job_id, line.replace(" since=", " unknown=7 since=", 1))

    found = [says for invariant, says in differences(client, database) if invariant == "I8"]

    assert any("unknown=7, 0 by the log" in says for says in found), found


@pytest.mark.parametrize(
    ("column", "value"),
    [("worker", "mallory"), ("detail", '{"seq":7}'), ("claim", 7), ("job_id", "another")],
)
def test_verify_reports_a_row_that_differs_from_its_outbox_entry_as_drift(
    client: Client, database: Database, mirror_all: Callable[[], int], column: str, value: Any
) -> None:
    """Checks the last mirrored entry, which the outbox still has. The chain was computed again after the change."""
    client.run(client.calls.enqueue.many([NewJob("a", QUEUE, Profile("send"), "{}")]))
    client.run(claims.claim(QUEUE, "w-1", 1))
    mirror_all()
    assert differences(client, database) == []
    with lying(database) as connection:
        last = "seq = (SELECT MAX(seq) FROM job_event)"
        connection.execute(
            text(f"UPDATE job_event SET {column} = :value WHERE {last}"), {"value": value}
        )
    forge_chain(database)

    found = [says for invariant, says in differences(client, database) if invariant == "I7"]

    assert any("differs between Redis and SQL" in says for says in found), found


def test_verify_reports_an_outbox_entry_that_was_damaged_after_quarantine_as_drift(
    client: Client, database: Database, mirror_all: Callable[[], int]
) -> None:
    client.run(client.calls.enqueue.many([NewJob("a", QUEUE, Profile("send"), "{}")]))
    mirror_all()
    outbox = queue_keys(QUEUE, "rqc")("outbox")
    ask = client.calls.delivery.ask
    [[(last, _)]] = client.run(ask([["XREVRANGE", outbox, "+", "-", "COUNT", 1]]))
    broken = ["type", "unheard of", "by", "-"]
    epoch, _, seq = last.partition("-")
    client.run(ask([["XADD", outbox, f"{epoch}-{int(seq) + 1}", *broken]]))
    mirror_all()
    in_quarantine = differences(client, database)
    client.run(ask([["DEL", outbox], ["XADD", outbox, last, *broken]]))
    client.run(ask([["XADD", outbox, f"{epoch}-{int(seq) + 1}", *broken]]))

    damaged = differences(client, database)

    assert in_quarantine == []
    assert [says for _, says in damaged] == [f"entry {last} differs between Redis and SQL"]


HOUR = 3_600_000


@pytest.fixture
def kept(client: Client, mirror_all: Callable[[], int]) -> Callable[[str, str], None]:
    """Return a function that runs a job with a kept result, and leaves its events only in SQL."""
    mirror_all()

    def run(job_id: str, value: str) -> None:
        succeed(client, job_id, value)
        mirror_all()
        later = NewJob("later", QUEUE, Profile("send"), "{}", delay_ms=HOUR)
        client.run(client.calls.enqueue.many([later]))
        mirror_all()

    client.run(client.calls.delivery.handshake(QUEUE))
    mirror_all()
    return run


def keeping(client: Client, job_id: str) -> None:
    """Enqueue a job whose result is kept."""
    job = NewJob(job_id, QUEUE, Profile("send"), "{}", ties=ties_of(keep_ms=HOUR))
    client.run(client.calls.enqueue.many([job]))


def succeed(client: Client, job_id: str, value: str) -> tuple[str, str]:
    """Run a job whose result is kept, with this id and result. Return its id and the fence of its claim."""
    keeping(client, job_id)
    (claim,) = client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    held = claim.id, claim.fence
    client.run(claims.complete(QUEUE, "w-1", [held], {1: pack_result(value)}))
    return held


def kept_of(client: Client, job_id: str) -> tuple[str, str]:
    """Return the results line of an ended job, and its stored result."""
    asked = [["HGET", f"rqc:{{{QUEUE}}}:{key}", job_id] for key in ("results", "returned")]
    line, value = client.run(client.calls.delivery.ask(asked))
    return line, value


def swap_values(client: Client, run: Callable[[str, str], None]) -> str:
    run("a", '"a"')
    run("b", '"b"')
    spoil(client, "returned", "HSET", "a", '"b"')
    return "the digest of its value is"


def keep_a_result_of_a_cancelled_job(client: Client, run: Callable[[str, str], None]) -> str:
    run("other", '"b"')
    keeping(client, "a")
    client.run(client.calls.admin.cancel(QUEUE, ["a"]))
    line, value = kept_of(client, "other")
    spoil(client, "results", "HSET", "a", line)
    spoil(client, "returned", "HSET", "a", value)
    return "kept as succeeded, cancelled by the log"


def keep_the_result_of_the_job_before(client: Client, run: Callable[[str, str], None]) -> str:
    run("a", '"1"')
    line, value = kept_of(client, "a")
    run("a", '"2"')
    spoil(client, "results", "HSET", "a", line)
    spoil(client, "returned", "HSET", "a", value)
    return "kept with fence="


def keep_a_value_that_was_never_told(client: Client, run: Callable[[str, str], None]) -> str:
    run("a", '"a"')
    line, value = kept_of(client, "a")
    keeping(client, "plain")
    (claim,) = client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    client.run(claims.complete(QUEUE, "w-1", [(claim.id, claim.fence)], {1: "!too_large"}))
    head, _, rest = line.partition(" fence=")
    lied = f"{head} fence={claim.fence} {rest.partition(' ')[2]}"
    spoil(client, "results", "HSET", "plain", lied)
    spoil(client, "returned", "HSET", "plain", value)
    return "none by the log"


def keep_a_result_of_a_job_that_never_was(client: Client, run: Callable[[str, str], None]) -> str:
    run("other", '"b"')
    line, value = kept_of(client, "other")
    spoil(client, "results", "HSET", "a", line)
    spoil(client, "returned", "HSET", "a", value)
    return "and by the log that is not its claim"


@pytest.mark.parametrize(
    "plant",
    [
        swap_values,
        keep_a_result_of_a_cancelled_job,
        keep_the_result_of_the_job_before,
        keep_a_value_that_was_never_told,
        keep_a_result_of_a_job_that_never_was,
    ],
)
def test_verify_finds_a_kept_result_that_differs_from_the_log(
    client: Client,
    database: Database,
    kept: Callable[[str, str], None],
    mirror_all: Callable[[], int],
    plant: Callable[[Client, Callable[[str, str], None]], str],
) -> None:
    """Checks changes that leave the sizes of the keys as they are. Only a comparison with the log finds such a
    change."""
    says = plant(client, kept)

    for _ in range(2):
        found = [
            v.job_id
            for v in compare(client, database, QUEUE)[0]
            if v.invariant == "I14" and says in v.says
        ]
        assert ["plain" if "none" in says else "a"] == found
        mirror_all()


def succeed_again(client: Client) -> None:
    succeed(client, "a", '"2"')


def cancel_again(client: Client) -> None:
    keeping(client, "a")
    client.run(client.calls.admin.cancel(QUEUE, ["a"]))


def while_the_log_is_off(
    client: Client, database: Database, again: Callable[[Client], None]
) -> None:
    switch_off(client, database, QUEUE)
    again(client)
    keeping(client, "anchor")
    spoil(client, "outbox", "XTRIM", "MAXLEN", 1)


def before_the_outbox_is_lost(
    client: Client, database: Database, again: Callable[[Client], None]
) -> None:
    again(client)
    spoil(client, "outbox", "DEL")


def among_entries_that_are_gone(
    client: Client, database: Database, again: Callable[[Client], None]
) -> None:
    (before,) = client.run(client.calls.delivery.ask([["XRANGE", "rqc:{q}:outbox", "-", "+"]]))
    again(client)
    (after,) = client.run(client.calls.delivery.ask([["XRANGE", "rqc:{q}:outbox", "-", "+"]]))
    keeping(client, "anchor")
    spoil(client, "outbox", "XDEL", *(at for at, _ in after[len(before) :]))


every_gap = pytest.mark.parametrize(
    "unseen", [while_the_log_is_off, before_the_outbox_is_lost, among_entries_that_are_gone]
)


@every_gap
@pytest.mark.parametrize("again", [succeed_again, cancel_again])
def test_the_result_of_a_job_that_ran_during_a_gap_is_no_violation(
    client: Client,
    database: Database,
    kept: Callable[[str, str], None],
    mirror_all: Callable[[], int],
    unseen: Callable[[Client, Database, Callable[[Client], None]], None],
    again: Callable[[Client], None],
) -> None:
    """Checks an id with two jobs. The log has the end of the earlier job, and the later job ended in the gap.

    Redis has the result of the later job. A complete baseline follows the gap.
    """
    kept("a", '"1"')
    unseen(client, database, again)
    before_it = [v for v in compare(client, database, QUEUE)[0] if v.invariant == "I14"]
    mirror_all()

    assert before_it == []
    assert compare(client, database, QUEUE) == ([], [])
    assert verify(database).violations == []


@every_gap
def test_a_kept_result_of_an_older_claim_is_reported_as_a_violation_even_after_a_gap(
    client: Client,
    database: Database,
    kept: Callable[[str, str], None],
    mirror_all: Callable[[], int],
    unseen: Callable[[Client, Database, Callable[[Client], None]], None],
) -> None:
    kept("a", '"1"')
    line, value = kept_of(client, "a")
    kept("a", '"2"')
    unseen(client, database, lambda client: keeping(client, "other"))
    mirror_all()
    spoil(client, "results", "HSET", "a", line)
    spoil(client, "returned", "HSET", "a", value)

    found = compare(client, database, QUEUE)[0]
    assert [("I14", "a")] == [
        (v.invariant, v.job_id) for v in found if "another job's result is kept" in v.says
    ]


def test_results_of_jobs_that_sql_does_not_have_are_no_violation(
    client: Client,
    database: Database,
    kept: Callable[[str, str], None],
    mirror_all: Callable[[], int],
) -> None:
    """Checks a job that was pruned, and a job that ended while the log was off."""
    kept("pruned", '"1"')
    prune_at(database, int(time.time() * 1000) + 100 * DAY)
    assert auditlog.rows(database, "SELECT 1 FROM job_event WHERE job_id = 'pruned'") == []
    while_the_log_is_off(client, database, lambda client: succeed(client, "unseen", '"2"'))
    mirror_all()
    assert compare(client, database, QUEUE) == ([], [])


def test_results_that_are_older_than_the_log_are_no_violation(
    client: Client, database: Database, mirror_all: Callable[[], int]
) -> None:
    succeed(client, "early", '"1"')
    keeping(client, "anchor")
    spoil(client, "outbox", "XTRIM", "MAXLEN", 1)
    mirror_all()

    assert kept_of(client, "early")[1] == '"1"'
    assert compare(client, database, QUEUE) == ([], [])


def test_verify_uses_the_ends_of_jobs_that_only_the_outbox_has(
    client: Client, database: Database, kept: Callable[[str, str], None]
) -> None:
    kept("a", '"1"')
    switch_off(client, database, QUEUE)
    succeed(client, "a", '"2"')
    client.run(client.calls.audit.attach(QUEUE, audit_id(database)))

    assert compare(client, database, QUEUE)[0] == []


def test_verify_compares_a_result_with_the_end_of_its_job_despite_a_later_refused_settlement(
    client: Client, database: Database, kept: Callable[[str, str], None]
) -> None:
    """Checks an id with two jobs. Verify compares the result of the second job with the end of the second job."""
    kept("a", '"1"')
    held = succeed(client, "a", '"2"')
    assert client.run(claims.complete(QUEUE, "w-1", [held])) == {"a": "gone"}

    assert compare(client, database, QUEUE) == ([], [])


def test_verify_reports_an_entry_that_was_deleted_from_the_outbox(
    client: Client, database: Database, level: Fleet
) -> None:
    level.run(5)
    (entries,) = client.run(client.calls.delivery.ask([["XRANGE", "rqc:{q}:outbox", "-", "+"]]))
    spoil(client, "outbox", "XDEL", entries[2][0])

    found = [says for invariant, says in differences(client, database) if invariant == "I7"]

    assert any(says.startswith("Redis lacks entries between") for says in found), found


def test_verify_reports_that_the_outbox_lacks_the_last_mirrored_entry(
    client: Client, database: Database, level: Fleet
) -> None:
    (entries,) = client.run(client.calls.delivery.ask([["XRANGE", "rqc:{q}:outbox", "-", "+"]]))
    spoil(client, "outbox", "XDEL", entries[0][0])

    assert differences(client, database) == [
        ("I7", f"Redis does not have {entries[0][0]}, the last entry that SQL has")
    ]


@pytest.mark.slow
def test_verify_with_the_url_of_redis_compares_the_log_with_redis(
    client: Client, database: Database, level: Fleet, valkey_url: str
) -> None:
    def command(*arguments: str) -> Any:
        url = database.address.render_as_string(hide_password=False)
        return audit("verify", "--json", "--audit", url, *arguments)

    assert command("--redis", valkey_url).exit_code == 0
    unreachable = command("--redis", "redis://127.0.0.1:1/0")
    spoil(client, "state", "DEL")
    drifted = command("--redis", valkey_url)

    assert unreachable.exit_code == 2
    (told,) = json.loads(unreachable.stdout)["queues"].values()
    (note,) = told["unknown"]
    assert "Redis cannot be compared" in note["says"]
    assert note["at_ms"] == told["at_ms"]
    assert drifted.exit_code == 1
    assert {v["invariant"] for v in json.loads(drifted.stdout)["violations"]} == {"I8"}
    assert command().exit_code == 0


def test_the_doctor_with_the_url_of_sql_compares_redis_with_sql(
    client: Client, database: Database, level: Fleet, valkey_url: str
) -> None:
    """Checks a deleted index, which the doctor repairs from Redis, and lost jobs, whose events only SQL has."""

    def doctor(*arguments: str) -> Any:
        url = database.address.render_as_string(hide_password=False)
        given = ["doctor", QUEUE, "--redis", valkey_url, "--audit", url, *arguments]
        return CliRunner().invoke(root, given)

    assert doctor().exit_code == 0
    spoil(client, "leases", "DEL")
    assert doctor("--repair").exit_code == 0
    assert doctor().exit_code == 0

    spoil(client, "state", "DEL")
    spoil(client, "jobs", "DEL")
    blind = CliRunner().invoke(root, ["doctor", QUEUE, "--redis", valkey_url, "--json"])
    seen = doctor("--json")

    def lost(result: Any) -> set[str]:
        found = json.loads(result.stdout)[-1]["left"]
        return {each["job"] for each in found if each["kind"] == "lost"}

    assert lost(blind) < lost(seen)
    assert seen.exit_code == 1


def test_the_doctor_reports_that_another_database_mirrors_the_queue(
    client: Client, level: Fleet, valkey_url: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    audit("migrate", "--audit", str(other))

    result = CliRunner().invoke(
        root, ["doctor", QUEUE, "--redis", valkey_url, "--audit", str(other)]
    )

    assert result.exit_code == 1
    assert f"queue {QUEUE!r} is mirrored into another audit database" in result.output
