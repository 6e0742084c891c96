"""Edits of jobs: what SQL has of an edit, and what the audit commands print."""

from __future__ import annotations

import json

import pytest

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.admin import Change
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.drift import compare
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.queries import waits
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.doctor import look, mend
from tests.kit.fleet import QUEUE
from tests.kit.seed import Seed


@pytest.mark.slow
def test_the_event_of_an_edit_has_the_values_from_before_the_edit(
    client: Client, database: Database
) -> None:
    job = NewJob("a", QUEUE, profile("send"), "{}", delay_ms=60_000, lane="2+tenant=acme")
    client.run(client.calls.enqueue.many([job]))
    edit = client.calls.admin.edit(
        QUEUE, ["a"], Change("high", "+0", "+90000"), by="ada", why="now"
    )
    assert client.run(edit) == {"a": "edited"}
    auditlog.drain(Mirror(Outbox(client), database, QUEUE))

    (row,) = auditlog.rows(database, "SELECT * FROM job")
    due, line = _before(database), client.run(client.calls.reads.job("a", [QUEUE]))
    assert line is not None
    said = {"seq": 1, "due_ms": None, "priority": "high", "lane": "1+tenant=acme"}
    new = {**said, "expires_ms": int(line.fields["expires"])}
    assert {name: row[name] for name in new} == new
    assert (row["state"], row["since_ms"]) == ("ready", int(line.fields["since"]))
    address = database.address.render_as_string(hide_password=False)
    for words in (("history", "a"), ("tail",)):
        table = audit(*words, "--audit", address)
        assert table.exit_code == 0, table.output
        assert "edited" in table.output
    events = json.loads(audit("history", "a", "--json", "--audit", address).stdout)["events"]
    assert [each["type"] for each in events] == ["enqueued", "edited"]
    told = events[1]
    assert (told["worker"], told["detail"]["why"]) == ("ada", "now")
    assert {k: told["detail"].get(k) for k in ("old_due_ms", "old_priority", "old_expires_ms")} == {
        "old_due_ms": due, "old_priority": "normal", "old_expires_ms": None,
    }  # fmt: skip
    (held,) = client.run(claims.claim(QUEUE, "w-1", 1)).jobs
    client.run(claims.complete(QUEUE, "w-1", [(held.id, held.fence)]))
    auditlog.drain(Mirror(Outbox(client), database, QUEUE))
    (answer,) = waits.why(database.readers, "a", QUEUE)
    (wait,) = answer.waits
    assert wait.since_ms == int(line.fields["since"])
    assert verify(database).verdict is LogVerdict.HOLDS


def test_an_edited_job_that_expires_before_its_retry_is_dead_and_has_no_place_in_line(
    valkey_url: str, database: Database
) -> None:
    """Checks an edit of the priority. After the edit, the job has no place in line until it is ready again."""
    with Seed(valkey_url) as seed:
        mirror = Mirror(Outbox(seed.client), database, seed.queue)
        seed.enqueue("a", expires_in_ms=5_000)
        seed.fail(seed.claim_one("a"), delay_ms=4_000)
        assert seed.edit("a", priority="high") == {"a": "edited"}
        seed.live(6_000)
        seed.claim()

        line = seed.state("a")
        assert line is not None
        assert line.startswith("dead ")
        assert " seq=" not in line
        assert look(seed) == []
        seed.control.hdel(seed.keys("state"), "a")
        assert mend(seed) == []
        assert seed.state("a") == line
        auditlog.drain(mirror)
        assert verify(database).verdict is LogVerdict.HOLDS
        assert compare(seed.client, database, seed.queue) == ([], [])
        assert seed.requeue("a") == {"a": "requeued"}
        assert look(seed) == []


def _before(database: Database) -> int:
    """Return the first due time of the job, according to its event."""
    (row,) = auditlog.rows(database, "SELECT detail FROM job_event WHERE type = 'enqueued'")
    due: int = json.loads(row["detail"])["due_ms"]
    return due
