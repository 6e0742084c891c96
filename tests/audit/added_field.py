"""Adds two fields to the table of a job's fields, and follows both fields from a producer to a restore.

:func:`grow` copies the source of rq-core, and adds two rows to the table in the copy. Then this module runs in the
copy. The module enqueues jobs with the two fields, deletes the outbox, and later deletes all data in Redis. At the end
it prints the fields in each store.

    python -m tests.audit.added_field REDIS_URL AUDIT_URL
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.errors import BadArguments
from rq_core.model.job import NewJob
from rq_core.model.keys import queue_keys
from rq_core.model.packed_job import Unreadable, pack, unpack
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.upkeep.restore import restore_jobs
from tests.audit.restore.jobs import HOUR_MS, claim, flush, job, lines, run_all
from tests.kit import auditlog
from tests.kit.agreement import assert_agree, drain
from tests.kit.fleet import QUEUE

ROOT: Final = Path(__file__).parents[2]
TABLE: Final = Path("rq_core/model/table/fields.py")
BEFORE: Final = '    Field("lane", _K.LANE, "lane"),\n'
"""The row of the table before which the new rows are inserted."""
ROWS: Final = """\
    Field("hue_ms", _K.NUMBER, "hue", trait={next}, given=True, meaning="a number"),
    Field("shade", _K.WORD, "shade", trait={after}, given=True, meaning="a word"),
"""
ASKED: Final[dict[str, dict[str, Any]]] = {
    "plain": {"ties": {"hue": 7, "shade": "teal"}},
    "kept": {"ties": {"keep": HOUR_MS, "shade": "teal"}},
    "later": {"ties": {"hue": 7, "shade": "teal"}, "delay_ms": HOUR_MS},
    "lane": {"ties": {"hue": 7}, "lane": "2+tenant=acme"},
    "unique": {
        "ties": {"hue": 7, "unique": "keep", "remember": HOUR_MS, "expires_in": HOUR_MS},
        "name": "task/of=8",
        "call": "=",
    },
    "without": {},
}
WRONG: Final = ('{"hue":"7"}', '{"hue":0.5}', '{"shade":7}', '{"shade":"light teal"}')
"""Texts of a job's optional fields (ties) with values that a state line cannot have."""


def grow(tree: Path) -> None:
    """Copy the program to ``tree``, and add two fields to the table in the copy. Nothing else changes."""
    for name in ("rq_core", "sql_audit", "lua"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "tests").symlink_to(ROOT / "tests")
    table = (tree / TABLE).read_text(encoding="utf-8")
    assert table.count(BEFORE) == 1
    places = table.count(" trait=")
    rows = ROWS.format(next=places + 1, after=places + 2)
    (tree / TABLE).write_text(table.replace(BEFORE, rows + BEFORE), encoding="utf-8")


def main() -> None:
    redis_url, audit_url = sys.argv[1:]
    database = Database(audit_url)
    migrate.upgrade_schema(database)
    with Client(redis_url) as client:
        sys.stdout.write(f"{json.dumps(_follow(client, database))}\n")
    database.close()


def _follow(client: Client, database: Database) -> dict[str, Any]:
    """Return the values of the two fields in each store: Redis, SQL, verify and restore."""
    told: dict[str, Any] = {"refused": [_is_refused(client, ties) for ties in WRONG]}
    jobs = [
        job(job_id, **{**asked, "ties": json.dumps(asked["ties"]) if asked else ""})
        for job_id, asked in ASKED.items()
    ]
    client.run(client.calls.enqueue.many([_through_a_row(each) for each in jobs]))
    assert_agree(client, database, LogVerdict.HOLDS)
    told["line"] = _of_lines(client)
    told["enqueued"] = _of_events(database, "enqueued")
    told["row"] = _of_rows(database)
    told["lies"] = [_lie(database, "hue_ms = 8"), _lie(database, "shade = 'rose'")]
    claim(client, 1)
    told["line of a claim"] = _of_lines(client)["plain"]
    _lose_outbox(client)
    assert_agree(client, database, LogVerdict.HOLDS)
    told["baseline"] = _of_events(database, "baseline")
    flush(client)
    drain(client, database)
    told["put back"] = restore_jobs(client, database, QUEUE, by="ada").restored
    assert_agree(client, database, LogVerdict.HOLDS)
    told["restored"] = _of_events(database, "restored")
    told["line after it"] = _of_lines(client)
    told["row after it"] = _of_rows(database)
    told["ran"] = sorted(run_all(client))
    assert_agree(client, database, LogVerdict.HOLDS)
    return told


def _through_a_row(new: NewJob) -> NewJob:
    """Pack a job into a row of the inbox, and return the job that is unpacked from this row."""
    return unpack(
        pack(new), queue=new.queue, job_id=new.id, task=new.profile.task, args=new.args_json
    )


def _is_refused(client: Client, ties: str) -> bool:
    """Return whether both the inbox and the queue refuse a job with these values of the two fields."""
    try:
        _through_a_row(job("wrong", ties=ties))
    except Unreadable:
        is_unreadable = True
    else:
        is_unreadable = False
    try:
        client.run(client.calls.enqueue.one(job("wrong", ties=ties)))
    except BadArguments:
        return is_unreadable and lines(client) == {}
    return False


def _of_lines(client: Client) -> dict[str, list[str]]:
    """Return the two fields of each job's state line, by job id."""
    return {
        job_id: [word for word in line.split(" ") if word.startswith(("hue=", "shade="))]
        for job_id, line in lines(client).items()
    }


def _of_events(database: Database, kind: str) -> dict[str, list[Any]]:
    """Return the values of the two added fields in the events of this type, by job id."""
    found = auditlog.rows(
        database, "SELECT job_id, detail FROM job_event WHERE type = :kind", kind=kind
    )
    facts = {row["job_id"]: json.loads(row["detail"]) for row in found}
    return {job_id: [each.get("hue_ms"), each.get("shade")] for job_id, each in facts.items()}


def _of_rows(database: Database) -> dict[str, list[Any]]:
    """Return the values of the two added fields in the columns of SQL, by job id."""
    found = auditlog.rows(database, "SELECT job_id, hue_ms, shade FROM job")
    return {row["job_id"]: [row["hue_ms"], row["shade"]] for row in found}


def _lie(database: Database, lie: str) -> list[str]:
    """Change a row in SQL to a false value, return what verify finds, and undo the change."""
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE job SET {lie} WHERE job_id = 'plain'"))
    found = [violation.says for violation in verify(database).queues[QUEUE].violations]
    with database.engine.begin() as connection:
        connection.execute(text("UPDATE job SET hue_ms = 7, shade = 'teal' WHERE job_id = 'plain'"))
    return found


def _lose_outbox(client: Client) -> None:
    delivery = client.calls.delivery
    client.run(delivery.ask([["UNLINK", queue_keys(QUEUE, client.prefix)("outbox")]], QUEUE))
    client.run(delivery.handshake(QUEUE))


if __name__ == "__main__":
    main()
