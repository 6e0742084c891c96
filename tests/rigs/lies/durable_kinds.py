"""Lies about durable jobs: about their steps and signals in the log, and about their boxes in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from rq_core.connections.client import Client
from rq_core.model.durable.boxes import header_in, signal_text, write_header
from rq_core.model.job import NewJob, Profile
from rq_core.model.keys import queue_keys
from rq_core.model.result_encoding import pack_result
from rq_core.model.table.machine import Priority
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls import claims
from rq_core.protocol.calls.boxes import Saving, Sending, save, send_signals
from sql_audit.store.schema.tables import metadata

Row = dict[str, Any]
JOB: Final = "steps"
"""The job whose box the lies change. It has saved two steps, taken a signal, received another one, and it sleeps."""


def make_job(client: Client, queue: str, life: str) -> None:
    """Enqueue a durable job. It saves two steps, takes one signal, gets a second signal, and sleeps."""
    job = NewJob(JOB, queue, Profile("order", priority=Priority.CRITICAL), "{}")

    def claim() -> str:
        (held,) = client.run(claims.claim(queue, "w-1", 1)).jobs
        assert held.id == JOB
        return held.fence

    def say(fence: str, what: Any, entry: int, name: str, value: str = "", about: str = "") -> None:
        record = Saving(JOB, fence, life, what, entry, name, value, about)
        client.run(save(queue, "w-1", [record]))

    def signal(name: str, value: str) -> None:
        client.run(send_signals(queue, [Sending(JOB, name, "", value)], by="ann"))

    client.run(client.calls.enqueue.many([job]))
    fence = claim()
    say(fence, "save", 1, "charge", pack_result('"ch_1"'))
    say(fence, "begin", 2, "invoice")
    say(fence, "save", 2, "invoice", pack_result("7"))
    say(fence, "wait", 3, "approval")
    client.run(claims.park(queue, "w-1", [(JOB, fence, "3", life, "")]))
    signal("approval", "true")
    fence = claim()
    say(fence, "wait", 3, "approval")
    say(fence, "sleep", 4, "cool-off", about="+999999999")
    signal("refusal", "false")
    client.run(claims.park(queue, "w-1", [(JOB, fence, "4", life, "")]))


# In SQL.


def step_forged(log: Any) -> Iterator[tuple[str, Callable[[Connection], None]]]:
    """Yield lies about the events of the durable job: the name of each lie, and the function that makes it."""
    table = metadata.tables["job_event"]
    rows = [row for row in log.of_queue(table) if row["job_id"] == JOB]
    epoch = max(row["epoch"] for row in rows)
    by_type: dict[str, list[Row]] = {}
    for row in rows:
        if row["epoch"] == epoch:
            by_type.setdefault(row["type"], []).append(row)
    charge, invoice, took = by_type["step_saved"]

    def said(*changes: tuple[Row, Mapping[str, Any]]) -> Callable[[Connection], None]:
        def tell(connection: Connection) -> None:
            for row, changed in changes:
                detail = json.dumps({**json.loads(row["detail"]), **changed}, separators=(",", ":"))
                where = [table.c[key.name] == row[key.name] for key in table.primary_key]
                connection.execute(table.update().where(*where).values(detail=detail))

        return tell

    def gone(row: Row, *changes: tuple[Row, Mapping[str, Any]]) -> Callable[[Connection], None]:
        def tell(connection: Connection) -> None:
            where = [table.c[key.name] == row[key.name] for key in table.primary_key]
            connection.execute(table.delete().where(*where))
            said(*changes)(connection)

        return tell

    begun_invoice, begun_wait, begun_sleep = by_type["step_begun"]
    yield "a step has a new name", said((charge, {"name": "charges"}))
    yield "a step has another step's name", said((charge, {"name": "invoice"}))
    yield "a step has a new number", said((invoice, {"entry": 9}))
    yield "a step has another digest", said((charge, {"digest": digest_of("8")}))
    yield "a step has another life", said((invoice, {"life": "0" * 16}))
    renumbered = [(begun_invoice, 1), (invoice, 1), (begun_wait, 2), (took, 2), (begun_sleep, 3)]
    yield (
        "a step is removed, and the others have new numbers",
        gone(charge, *((row, {"entry": entry}) for row, entry in renumbered)),
    )
    yield "a wait takes another signal", said((took, {"message": 2}))
    yield "a wait takes no signal", said((took, {"message": None}))
    yield "a signal has another name", said((by_type["signalled"][0], {"name": "refusal"}))
    yield "a signal is removed", gone(by_type["signalled"][0])
    yield "a job is woken without a cause", said((by_type["woken"][0], {"cause": None}))
    yield "a job is woken for another entry", said((by_type["woken"][0], {"cause": 2}))
    yield "a job parks for another entry", said((by_type["parked"][0], {"waits": "2"}))
    yield "a sleep has another end", said((begun_sleep, {"until_ms": 9_000_000_000_000}))


# In Redis.


class Box(NamedTuple):
    """The fields of the durable job's box in Redis, and a method to change them."""

    client: Client
    key: str
    life: str
    members: Mapping[str, str]

    def text(self, rest: str) -> str:
        return self.members[f"{self.life}{rest}"]

    def write(self, entries: int = 0, signals: int = 0, **changes: str | None) -> None:
        """Change fields of the box, and write a header that fits them.

        The name ``e1`` is entry 1, ``s1`` is signal 1, and ``list_NAME`` is the list of signals with this name. The
        value None removes the field. ``entries`` and ``signals`` are added to the counts in the header.
        """
        marks = {"e": "|", "s": ">", "l": ">"}
        named = {
            f"{self.life}{marks[name[0]]}{name.partition('list_')[2] or name[1:]}": text
            for name, text in changes.items()
        }
        members = {**self.members, **named}
        said = header_in(self.members[self.life])
        assert said is not None
        values = [
            text.partition("\n")[2]
            for name, text in members.items()
            if text is not None and name.startswith((f"{self.life}|", f"{self.life}>"))
        ]
        size = sum(len(value.encode()) for value in values)
        header = write_header(JOB, said.entries + entries, size, said.signals + signals)
        commands: list[list[Any]] = [["HSET", self.key, self.life, header]]
        for name, text in named.items():
            commands.append(
                ["HDEL", self.key, name] if text is None else ["HSET", self.key, name, text]
            )
        self.client.run(self.client.calls.delivery.ask(commands))


def box_in(client: Client, queue: str) -> Box:
    """Return the box of the durable job in this queue."""
    members: dict[str, str] = client.run(client.calls.reads.snapshot(queue))["boxes"]
    (life,) = {name for name in members if not set("|>=") & set(name)}
    return Box(client, queue_keys(queue, client.prefix)("boxes"), life, members)


def box_forged(_: Any) -> Iterator[tuple[str, Callable[[Box], None]]]:
    """Yield lies about the durable job's box in Redis. All but the last also write a header that fits."""

    def rename(box: Box) -> None:
        box.write(e1=box.text("|1").replace("charge ", "charges ", 1))

    def number(box: Box) -> None:
        box.write(e1=box.text("|2"), e2=box.text("|1"))

    def digest(box: Box) -> None:
        text = box.text("|1").replace(digest_of('"ch_1"'), digest_of('"ch_2"'))
        box.write(e1=text.replace('"ch_1"', '"ch_2"'))

    def value(box: Box) -> None:
        box.write(e1=box.text("|1").replace('"ch_1"', '"ch_2"'))

    def add(box: Box) -> None:
        box.write(1, e5=box.text("|1").replace("charge ", "receipt ", 1))

    def take_away(box: Box) -> None:
        box.write(-1, e4=None)

    def wake_early(box: Box) -> None:
        text, _, _ = box.text("|4").partition("until=")
        box.write(e4=f"{text}until=1")

    def make_up(box: Box) -> None:
        text = signal_text("approval", 5, digest_of("8"), value="8")
        box.write(0, 1, s3=text, list_approval="3")

    def drop(box: Box) -> None:
        box.write(0, -1, s2=None, list_refusal=None)

    def rename_signal(box: Box) -> None:
        text = box.text(">2").replace("refusal ", "approval ", 1)
        box.write(s2=text, list_refusal=None, list_approval="2")

    def untake(box: Box) -> None:
        box.write(s1=f"{box.text('>1')}\ntrue", list_approval="1")

    def take(box: Box) -> None:
        box.write(s2=box.text(">2").partition("\n")[0], list_refusal=None)

    def lengthen(box: Box) -> None:
        box.write(1)

    yield "an entry has another name", rename
    yield "two entries have exchanged numbers", number
    yield "a value and its digest are others", digest
    yield "a value is another", value
    yield "an entry is made up", add
    yield "an entry is taken away", take_away
    yield "a sleep has another end", wake_early
    yield "a signal is made up", make_up
    yield "a signal is dropped", drop
    yield "a signal has another name", rename_signal
    yield "a signal that was taken waits again", untake
    yield "a signal that waits was taken", take
    yield "the header says one entry more", lengthen
