"""Two sources of one audit database: two Redis servers, or two prefixes. The second source takes no queue of the
first."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy import text

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile
from sql_audit.errors import SourceDiffers
from sql_audit.mirror import service
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.queries.history import audit_id
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import audit, command
from tests.kit.liar import lying
from tests.kit.mirroring import mirroring
from tests.kit.servers import RedisServer
from tests.kit.wait import wait_until

WAYS_OUT = ("--audit ANOTHER", "rq-core audit adopt --redis")
JOBS = "SELECT queue, job_id, state FROM job ORDER BY queue, job_id"


@dataclass
class Source:
    """The queues of one prefix in one Redis."""

    client: Client
    queue: str
    audit_url: str
    database: Database

    @property
    def words(self) -> tuple[str, ...]:
        return (
            "--redis", self.client.url, "--prefix", self.client.prefix, "--audit", self.audit_url,
        )  # fmt: skip

    def add(self, *ids: str) -> None:
        jobs = [NewJob(each, self.queue, profile("task"), "{}", spec_max=65_536) for each in ids]
        self.client.run(self.client.calls.enqueue.many(jobs))

    def contents(self) -> dict[bytes, Any]:
        """Return every key with this prefix, and its value."""
        with redis.Redis.from_url(self.client.url) as plain:
            keys: list[bytes] = sorted(plain.scan_iter(f"{self.client.prefix}:*"))
            return {key: plain.dump(key) for key in keys}

    def states(self) -> dict[str, str]:
        """Return the states of the jobs in SQL."""
        return {row["job_id"]: row["state"] for row in auditlog.rows(self.database, JOBS)}

    def mirror(self) -> None:
        done = audit("run", "--once", *self.words)
        assert done.exit_code == 0, done.output


@pytest.fixture
def other_url(valkey_url: str, start_redis: Callable[..., RedisServer]) -> str:
    return start_redis().url


@pytest.fixture
def url(database: Database) -> str:
    return database.address.render_as_string(hide_password=False)


@pytest.fixture
def second(make_second: Callable[..., Source], other_url: str) -> Source:
    """Return a source on a second, empty server."""
    return make_second(other_url)


@pytest.fixture
def first(client: Client, url: str, database: Database) -> Source:
    """Return a source with two waiting jobs, whose events are mirrored."""
    first = Source(client, "mail", url, database)
    first.add("a", "b")
    first.mirror()
    return first


@pytest.fixture
def make_second(url: str, database: Database) -> Iterator[Callable[..., Source]]:
    clients = []

    def make(redis_url: str, *, prefix: str = "rqc", queue: str = "mail") -> Source:
        client = Client(redis_url, prefix=prefix)
        clients.append(client)
        return Source(client, queue, url, database)

    yield make
    for client in clients:
        client.close()


@pytest.mark.parametrize("queue", ["mail", "other"], ids=["same-name", "other-name"])
@pytest.mark.parametrize("apart", ["servers", "prefixes"])
@pytest.mark.slow
def test_commands_with_a_second_redis_as_source_change_no_data_of_the_first(
    apart: str,
    queue: str,
    first: Source,
    make_second: Callable[..., Source],
    valkey_url: str,
    request: pytest.FixtureRequest,
    database: Database,
) -> None:
    if apart == "servers":
        second = make_second(request.getfixturevalue("other_url"), queue=queue)
    else:
        second = make_second(valkey_url, prefix="two", queue=queue)
    second.add("c")
    there, here, known = first.contents(), second.contents(), auditlog.rows(database, JOBS)

    run = audit("run", "--once", *second.words)
    restored = audit("restore", "--apply", "--wait", "1", *second.words)
    doctor = command("doctor", *second.words)
    verified = audit("verify", *second.words)
    of_queue = [audit(how, queue, *second.words) for how in ("on", "off")]

    if (apart, queue) == ("prefixes", "other"):
        done = [run, restored, doctor, verified, *of_queue]
        assert [each.exit_code for each in done] == [0] * 6, [each.output for each in done]
        assert "queue mail is mirrored from prefix rqc: not compared" in verified.stderr
        assert {key.split(b":")[1] for key in second.contents()} == {b"queues", b"{other}"}
        known += [{"queue": "other", "job_id": "c", "state": "ready"}]
    else:
        for each in (run, restored, *of_queue):
            assert each.exit_code == 1
            assert all(way in each.output for way in WAYS_OUT), each.output
        for each in (doctor, verified):
            assert each.exit_code == 2
            assert all(way in each.output for way in WAYS_OUT), each.output
        assert "all agrees" not in doctor.output
        assert second.contents() == here
    assert first.contents() == there
    assert [dict(row) for row in auditlog.rows(database, JOBS)] == [dict(row) for row in known]
    with lying(database) as connection:
        connection.execute(text("UPDATE mirror_cursor SET stamp = 'another' WHERE queue = 'mail'"))
    lied = audit("verify", *first.words)
    assert lied.exit_code == 2
    assert "cannot be compared" in lied.output
    assert audit("adopt", *first.words).exit_code == 0
    first.add("d")
    first.mirror()
    assert (
        json.loads(audit("restore", "--json", *first.words).stdout)["queues"]["mail"]["lost"] == []
    )
    assert audit("verify", *first.words).exit_code == 0


@pytest.mark.parametrize("queue", ["mail", "other"], ids=["same-name", "other-name"])
def test_audit_adopt_refuses_a_redis_whose_queue_another_database_mirrors(
    queue: str, first: Source, make_second: Callable[..., Source], other_url: str, tmp_path: Path
) -> None:
    """Checks that the refused commands change no data in the first Redis, in the second Redis, or in the log.

    The second Redis also has a queue without a mirror. `audit adopt` does not attach this queue.
    """
    theirs, second = at_another_database(make_second(other_url, queue=queue), tmp_path)
    there, here, log = first.contents(), second.contents(), contents_of_log(first)

    for refused in (audit("adopt", *second.words), audit("run", "--once", *second.words)):
        assert refused.exit_code == 1
        assert f"mirrors queue {queue} (its id is {theirs})" in refused.output
        assert "audit off QUEUE --force" in refused.output
        assert "free" not in refused.output
    assert (first.contents(), second.contents(), contents_of_log(first)) == (there, here, log)
    first.add("d")
    first.mirror()
    assert audit("verify", *first.words).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("starts", ["run", "worker", "on"])
def test_a_mirror_checks_all_queues_before_it_attaches_the_first(
    starts: str, first: Source, make_second: Callable[..., Source], valkey_url: str, tmp_path: Path
) -> None:
    _, second = at_another_database(make_second(valkey_url, prefix="two", queue="other"), tmp_path)
    here, log = second.contents(), contents_of_log(first)

    (tmp_path / "tasks.py").write_text("from rq_core import App\napp = App()\napp.queue('free')\n")
    how = {
        "run": ("audit", "run", "--once"),
        "worker": ("worker", "tasks:app", "--queues", "free", "--burst"),
        "on": ("audit", "on", "other"),
    }
    program = [sys.executable, "-m", "rq_core.cli", *how[starts], *second.words]
    refused = subprocess.run(
        program, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=60
    )

    assert refused.returncode == 1, refused.stderr
    assert "mirrors queue other (its id is" in refused.stderr
    assert (second.contents(), contents_of_log(first)) == (here, log)
    looked = command("doctor", *second.words)
    assert looked.exit_code == 1, looked.output
    assert "queue 'other' is mirrored into another audit database" in looked.output


def test_verify_gives_the_reason_only_once_if_it_cannot_compare_redis(
    first: Source, second: Source
) -> None:
    replace(first, queue="news").add("n")
    first.mirror()
    second.add("c")

    verified = audit("verify", *second.words)

    assert verified.exit_code == 2
    assert "cannot tell of mail, news: Redis cannot be compared" in verified.output
    assert verified.output.count(WAYS_OUT[0]) == 1


def at_another_database(source: Source, directory: Path) -> tuple[str, Source]:
    """Mirror a queue into another database, and add a second queue that is not mirrored.

    Returns the audit id of that database, and the source.
    """
    theirs = Database(f"sqlite:///{directory / 'theirs.db'}")
    source.add("c")
    replace(source, audit_url=theirs.url, database=theirs).mirror()
    with contextlib.closing(theirs):
        replace(source, queue="free").add("e")
        return audit_id(theirs), source


def contents_of_log(source: Source) -> list[Any]:
    """Return the jobs, cursors, losses and epochs that SQL has."""
    tables = ("job", "mirror_cursor", "mirror_loss", "mirror_epoch")
    found = [auditlog.rows(source.database, f"SELECT * FROM {name}") for name in tables]
    return [[tuple(row.values()) for row in rows] for rows in found]


def stamps(source: Source) -> tuple[str | None, str | None]:
    """Return the stamp of a queue in Redis, and its stamp in SQL."""
    found = auditlog.one(
        source.database, "SELECT stamp FROM mirror_cursor WHERE queue = :q", q=source.queue
    )
    return source.client.run(source.client.calls.reads.stamp(source.queue)), found["stamp"]


def empty(source: Source) -> None:
    source.client.run(source.client.calls.delivery.ask([["FLUSHALL"]]))


@pytest.mark.slow
def test_an_empty_redis_is_refused_while_a_mirror_serves_the_queues(
    first: Source, second: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks that an empty Redis does not count as a loss while a mirror copies events of the first Redis."""
    monkeypatch.setattr(service, "RECLAIM_S", 2.0)
    with mirroring(first.client.url, first.database):
        refused = audit("run", "--once", *second.words)
        first.add("c")
        wait_until(
            lambda: first.states() == {"a": "ready", "b": "ready", "c": "ready"}, "it goes on"
        )

    assert refused.exit_code == 1
    assert "another mirror has mail there, and this Redis is empty" in refused.output
    assert second.contents() == {}
    assert audit("verify", *first.words).exit_code == 0


def test_the_old_server_is_refused_after_a_total_loss(first: Source, second: Source) -> None:
    """Checks a new, empty server at another address, which gets another stamp. Later the old server returns."""
    before = stamps(first)
    second.mirror()
    restored = audit("restore", "--apply", "--wait", "1", *second.words)
    old = audit("run", "--once", *first.words)

    assert restored.exit_code == 0, restored.output
    second.mirror()
    assert second.states() == {"a": "ready", "b": "ready"}
    assert audit("verify", *second.words).exit_code == 0
    assert before[0] == before[1] != stamps(second)[0] == stamps(second)[1]
    assert old.exit_code == 1
    assert f"stamp {before[0]} there, and stamp {stamps(second)[0]} by the log" in old.output


@pytest.mark.parametrize("dies", ["before Redis is told", "before SQL is told"])
def test_a_mirror_that_died_while_it_attached_a_queue_can_start_again(
    dies: str, first: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty(first)

    def attach(*args: Any) -> None:
        if dies == "before SQL is told":
            whole(*args)
        raise KeyboardInterrupt

    whole = Outbox.attach
    with monkeypatch.context() as dying:
        dying.setattr(Outbox, "attach", attach)
        assert audit("run", "--once", *first.words).exit_code == 130
    first.add("c")
    first.mirror()

    assert first.states() == {"a": "lost", "b": "lost", "c": "ready"}
    assert stamps(first)[0] == stamps(first)[1] is not None


def test_one_of_two_mirrors_that_start_together_on_two_servers_is_refused(
    client: Client, second: Source, database: Database, url: str
) -> None:
    both = [Source(client, "mail", url, database), second]
    for source, job_id in zip(both, "ab", strict=True):
        source.add(job_id)
    before = [source.contents() for source in both]
    with ThreadPoolExecutor() as pool:
        ended = [
            pool.submit(
                service.run_mirror, Outbox(each.client), url, stop=threading.Event(), once=True
            )
            for each in both
        ]
    failed = [each.exception() for each in ended]

    (loser,) = [n for n, error in enumerate(failed) if error is not None]
    assert isinstance(failed[loser], SourceDiffers)
    assert both[loser].contents() == before[loser]
    assert both[0].states() == {"ba"[loser]: "ready"}


@pytest.mark.timeout(30)
def test_an_attaching_mirror_does_not_wait_for_a_writer_of_the_sqlite_file(
    client: Client, sqlite_url: str
) -> None:
    """Checks a writer that keeps its lock on the file. The mirror skips the turn, so that its other queues are not
    delayed.
    """
    migrate.ensure_schema(database := Database(sqlite_url))
    source = Source(client, "mail", sqlite_url, database)
    source.add("a")
    mirror = Mirror(Outbox(client), database, "mail")

    with contextlib.closing(database):
        with Database(sqlite_url).writing():
            while_written = mirror.turn().outcome
        afterwards = mirror.turn().outcome

    assert (while_written, afterwards) == (TurnOutcome.HELD, TurnOutcome.MIRRORED)


def test_a_running_mirror_stops_when_the_queues_are_adopted_by_another_source(
    first: Source, second: Source
) -> None:
    mirror = Mirror(Outbox(first.client), first.database, "mail")
    mirror.turn()
    second.add("c")
    assert audit("adopt", *second.words).exit_code == 0
    second.mirror()
    first.add("d")
    there = first.contents()

    with pytest.raises(SourceDiffers):
        mirror.turn()

    assert first.contents() == there
    assert second.states() == {"a": "lost", "b": "lost", "c": "ready"}
    assert audit("verify", *second.words).exit_code == 0


def test_the_queues_of_a_renamed_prefix_can_be_adopted(
    first: Source, make_second: Callable[..., Source], valkey_url: str
) -> None:
    second = make_second(valkey_url, prefix="new")
    with redis.Redis.from_url(valkey_url) as plain:
        for key in plain.scan_iter("rqc:*"):
            plain.rename(key, key.replace(b"rqc:", b"new:", 1))
    refused = audit("run", "--once", *second.words)
    adopted = audit("adopt", *second.words)
    second.add("c")
    second.mirror()

    assert "queue mail is mirrored from prefix rqc" in refused.output
    assert "the source of mail is prefix new of this Redis" in adopted.output
    assert second.states() == {"a": "ready", "b": "ready", "c": "ready"}
    assert audit("verify", *second.words).exit_code == 0


def test_a_deleted_queue_may_be_created_again_on_another_source(
    first: Source, second: Source
) -> None:
    first.client.run(first.client.calls.admin.cancel("mail", ["a", "b"]))
    first.client.run(first.client.calls.deletion.delete("mail"))
    first.mirror()
    second.add("c")
    second.mirror()

    assert second.states()["c"] == "ready"
    assert audit("verify", *second.words).exit_code == 0
