"""A true log on a real server, with rows in each table. An honest copy of the log undoes lies."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import text
from sqlalchemy.exc import NoResultFound

from rq_core.connections.client import Client
from rq_core.model.durable.boxes import new_life
from rq_core.model.job import NewJob, Profile, ties_of
from rq_core.model.limits.scopes import lane_name
from rq_core.model.recurrence import recurrence
from rq_core.model.result_encoding import DIGEST, pack_result
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.schedules import Declaration, Instant, parse_changes, tick
from rq_core.protocol.engine.plan import Call
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.record import record_proofs
from sql_audit.proof.verify import heads, verify
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import metadata
from sql_audit.upkeep.plan import Rules, plan
from sql_audit.upkeep.prune import prune_logs
from tests.kit import auditlog
from tests.kit.liar import forge_chain, lying
from tests.kit.schemas import lay_schema
from tests.kit.servers import PostgresServer, RedisServer, engines
from tests.rigs.lies.durable_kinds import box_in, make_job
from tests.rigs.lies.kinds import OTHER, QUEUE, Lie, Log

PRUNED = "old"
DAY = 86_400_000
DISCARDED = 11
"""The number of a job that finds its tenant's cap full."""
COMPARED = (QUEUE, PRUNED)
"""The queues whose outboxes can be compared with SQL."""


class Stage:
    """The audit database that lies change, an honest copy of it, and its Redis server."""

    def __init__(self, client: Client, redis_url: str, database: Database) -> None:
        self.client = client
        self.redis_url = redis_url
        self.database = database
        make(client, database)
        self.heads = [head.sha256 for head in heads(database)]
        self.log = Log(database.dialect, rows_of(database))
        empty = [name for name, rows in self.log.rows.items() if not rows]
        assert not empty, f"{empty} are empty: a lie about nothing proves nothing"
        database.close()
        self._box = box_in(client, QUEUE)
        self._honest = f"{database.address.database}_honest"
        if database.dialect == "sqlite":
            with contextlib.closing(sqlite3.connect(database.path)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copyfile(database.path, self._honest)
        else:
            self._copy(database.address.database, self._honest)

    def restore(self, lie: Lie) -> None:
        """Undo a lie, with the help of the honest copy."""
        if lie.in_redis:
            flat = [each for item in self._box.members.items() for each in item]
            commands = [["DEL", self._box.key], ["HSET", self._box.key, *flat]]
            self.client.run(self.client.calls.delivery.ask(commands))
            return
        if lie.in_rows and self.database.dialect == "postgresql":
            # A database is copied in a second, its rows in a tenth of that.
            with lying(self.database) as connection:
                for table in metadata.sorted_tables:
                    connection.execute(table.delete())
                    connection.execute(table.insert(), self.log.rows[table.name])
            return
        self.database.close()
        if self.database.dialect == "postgresql":
            self._copy(self._honest, self.database.address.database)
            return
        for end in ("", "-wal", "-shm"):
            Path(f"{self.database.path}{end}").unlink(missing_ok=True)
        shutil.copyfile(self._honest, self.database.path)

    def tell(self, lie: Lie, *, chain_again: bool) -> None:
        """Make a lie. With ``chain_again``, compute the chain of hashes again to match it.

        Raises sqlalchemy.exc.SQLAlchemyError if the database refuses the lie.
        """
        if lie.in_redis:
            lie.tell(self._box)
            return
        if lie.in_rows:
            with lying(self.database) as connection:
                lie.tell(connection)
            if chain_again:
                with contextlib.suppress(
                    NoResultFound
                ):  # There is no name with which it could begin.
                    forge_chain(self.database)
            return
        with self.database.writing(wait=True) as connection:
            assert connection is not None
            if self.database.dialect == "postgresql":
                connection.execute(text("SET LOCAL allow_system_table_mods = on"))
            lie.tell(connection)
            connection.commit()
        self.database.close()

    def _copy(self, source: str | None, target: str | None) -> None:
        address = self.database.address
        assert source is not None
        assert target is not None
        names = sql.Identifier(target), sql.Identifier(source)
        with psycopg.connect(
            host=address.host, port=address.port, user="postgres", autocommit=True
        ) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(names[0]))
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(*names)
            )


def make(client: Client, database: Database) -> None:
    """Fill three queues and mirror them. Each queue has a history of its own.

    Redis lost the first queue once. The second queue has an unreadable entry. The third queue was pruned.
    """

    def mirror(queue: str) -> None:
        auditlog.drain(Mirror(Outbox(client), database, queue, limits=BatchLimits(events=12)))

    happen(client)
    mirror(QUEUE)
    client.run(client.calls.delivery.ask([["FLUSHALL"]]))
    happen(client)
    mirror(QUEUE)
    for queue in (OTHER, PRUNED):
        client.run(
            client.calls.enqueue.many(
                [NewJob(f"{queue}-{n}", queue, Profile("send"), "{}") for n in range(4)]
            )
        )
        mirror(queue)
        taken = client.run(claims.claim(queue, "w-1", 4)).jobs
        mirror(queue)
        client.run(claims.complete(queue, "w-1", [(job.id, job.fence) for job in taken]))
        mirror(queue)
    client.run(client.calls.enqueue.many([NewJob(f"{PRUNED}-new", PRUNED, Profile("send"), "{}")]))
    mirror(PRUNED)
    later = int(time.time() * 1000) + 200 * DAY
    prune_logs(
        database,
        plan(database, Rules(90 * DAY, {}), queue=PRUNED, now_ms=later),
        by="ada",
        now_ms=later,
    )
    [(at, _)] = client.run(
        client.calls.delivery.ask(
            [["XREVRANGE", f"rqc:{{{OTHER}}}:outbox", "+", "-", "COUNT", "1"]]
        )
    )[0]
    epoch, _, seq = (at.decode() if isinstance(at, bytes) else at).partition("-")
    broken = [
        "XADD", f"rqc:{{{OTHER}}}:outbox", f"{epoch}-{int(seq) + 1}", "type", "unheard of", "by", "-",
    ]  # fmt: skip
    client.run(client.calls.delivery.ask([broken]))
    mirror(OTHER)
    record_proofs(database, verify(database))


def happen(client: Client) -> None:
    """Make the events of a queue, in the same way each time, so that the lies about them are the same.

    Jobs succeed, die, are cancelled or are discarded. Some jobs wait, and one job runs.
    """

    def job(n: int, **ties: Any) -> NewJob:
        lane = lane_name(2, ["task=send", f"tenant={'acme' if n % 2 else 'wayne'}"])
        name = f"send/{n}" if ties else ""
        full = "discard|tenant=acme" if n == DISCARDED else ""
        made = NewJob(f"job-{n}", QUEUE, Profile("send"), "{}", 0, lane, full)
        return made._replace(ties=ties_of(**ties), name=name) if ties else made

    def claim(places: int) -> list[tuple[str, str]]:
        return [
            (each.id, each.fence) for each in client.run(claims.claim(QUEUE, "w-1", places)).jobs
        ]

    caps = [("task=send", "4", -1), ("tenant=acme", "2", -1), ("tenant@1s", "500/1000ms/50", -1)]
    client.run(client.calls.caps.set(QUEUE, caps, why="a test"))
    # The first call begins an epoch. A removed row of `mirror_loss` shows only by its moment, which no job's event may
    # share.
    time.sleep(0.005)
    client.run(client.calls.enqueue.many([job(n) for n in range(6)]))
    client.run(client.calls.enqueue.many([job(n, unique="keep", keep_ms=600_000) for n in (6, 8)]))
    done, failed, given_back, _runs = claim(4)
    client.run(client.calls.enqueue.many([job(DISCARDED)]))
    error = '{"type":"ValueError","message":"no"}'
    client.run(claims.fail(QUEUE, "w-1", [(*failed, "retry", 0, "-", error)]))
    client.run(claims.rollback(QUEUE, "w-1", [(*given_back, "stopping", "null", "", 0)]))
    client.run(claims.complete(QUEUE, "w-1", [done], {1: pack_result('"x"', DIGEST)}))
    for _ in range(2):
        again = claim(2)
        client.run(
            claims.fail(QUEUE, "w-1", [(*each, "final", 0, "-", error) for each in again[:1]])
        )
        client.run(claims.complete(QUEUE, "w-1", again[1:]))
    make_job(client, QUEUE, new_life())
    tick_schedules(client)
    client.run(client.calls.admin.cancel(QUEUE, ["job-8"]))


def tick_schedules(client: Client) -> None:
    """Fire, skip and miss instants of a schedule, and let an operator change another schedule.

    The instants are milliseconds apart. Scripts accept any instants, since workers compute them.
    """
    calls = client.calls.schedules
    job = NewJob("-", QUEUE, Profile("send"), "{}", spec_max=1_000)
    beat, halted = (
        Declaration.of(job, recurrence(name, every=3_600)) for name in ("beat", "halted")
    )
    client.run(calls.put(QUEUE, [halted]))
    client.run(calls.change(QUEUE, "halted", "pause", why="a test"))
    how = {"by": "ada", "why": "", "source": "live", "spec_max": 1_000, "what": "put"}
    outcome = "late"
    while outcome == "late":  # The machine was slow.
        at = client.run(client.calls.reads.now_ms(QUEUE)) + 20
        record = ("beat", -1, at, at, beat.rule.to_json(), beat.packed)
        call = Call("schedule", QUEUE, how, parse_changes, (record,))
        outcome = client.run(call)["beat"].outcome
    for fired, following, missed in ((at, at + 1, 0), (at + 1, at + 2, 0), (0, at + 10**9, 3)):
        expected = client.run(calls.stored(QUEUE))["beat"].next_ms
        instant = Instant("beat", 1, expected, fired, following, missed)
        while client.run(tick(QUEUE, "w-1", [instant])).told["beat"].outcome == "early":
            time.sleep(0.005)
    client.run(calls.run(QUEUE, "beat", why="a test"))


def rows_of(database: Database) -> dict[str, list[dict[str, Any]]]:
    """Return all rows of each table, ordered by their keys."""
    found = {}
    for table in metadata.sorted_tables:
        key = ", ".join(column.name for column in table.primary_key)
        found[table.name] = auditlog.rows(database, f"SELECT * FROM {table.name} ORDER BY {key}")
    return found


@contextlib.contextmanager
def staged(dialect: str) -> Iterator[Stage]:
    """Yield a stage with its own servers."""
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rq-core-lies-")))
        server = RedisServer(engines()[0], place).start()
        stack.callback(server.kill)
        url = str(place / "audit.db")
        if dialect == "postgresql":
            postgres = PostgresServer().start()
            stack.callback(postgres.stop)
            url = postgres.url(postgres.create_database())
        database = Database(url)
        stack.callback(database.close)
        lay_schema(database)
        client = stack.enter_context(Client(server.url))
        yield Stage(client, server.url, database)
