"""A forger changes the box of a durable job in Redis. `verify --redis` and the doctor compare each box with the log.

The doctor restores the true box if the log has all its values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from rq_core.doctor import Evidence, Finding, diagnose, repair
from rq_core.doctor.finding import Kind
from rq_core.doctor.log import read_log
from rq_core.model.durable.boxes import signal_text, write_header
from rq_core.model.events import OutboxId
from rq_core.model.result_encoding import pack_result
from rq_core.model.state_line import lines_of_jobs
from rq_core.model.unique_names import digest_of
from sql_audit.mirror.redis_access import Outbox
from sql_audit.mirror.turn import Mirror
from sql_audit.proof.compare.box_histories import (
    JOBS_CHUNK,
    MEMBERS_CHUNK,
    chunks_of,
    tell_boxes,
)
from sql_audit.proof.compare.drift import compare, drift_of
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.broken import broken_after
from tests.kit.liar import lying
from tests.kit.scenes import SLOT, Scene
from tests.kit.seed import LIFE, WORKER, Seed

Forge = Callable[[Seed], None]
OTHER_LIFE = "9f3a0b1c22aa0002"


@pytest.fixture
def seed(valkey_url: str, database: Database) -> Iterator[Seed]:
    with Seed(valkey_url) as made:
        mirror(made, database)
        made.enqueue("first")
        mirror(made, database)
        made.complete(*made.claim().jobs)
        yield made


def mirror(seed: Seed, database: Database) -> None:
    """Copy all events to SQL. Redis then keeps only the last entry of the outbox."""
    auditlog.drain(Mirror(Outbox(seed.client), database, seed.queue))


def durable(seed: Seed, kept: str = "full") -> None:
    """Let a job save a step, receive a signal, and park for a sleep."""
    claim = seed.running("a")
    seed.save(claim, value='"ch_1"', kept=kept)
    seed.wait(claim, "+50000", name="cool-off", what="sleep", entry=2)
    seed.signal("a", value="7", key="k", value_max=100 if kept == "full" else 0)
    seed.park(claim, waits="2")


def boxes(seed: Seed) -> str:
    return str(seed.keys("boxes"))


def text_of(seed: Seed, rest: str) -> str:
    return str(seed.control.hget(boxes(seed), f"{LIFE}{rest}"))


def header(seed: Seed, entries: int, size: int, signals: int = 1) -> None:
    mail = f" mail={signals}" if signals else ""
    seed.control.hset(boxes(seed), LIFE, f"job=a entries={entries} bytes={size}{mail}")


def rename(seed: Seed) -> None:
    text = text_of(seed, "|1")
    seed.control.hset(boxes(seed), f"{LIFE}|1", text.replace("charge ", "charges ", 1))


def add_entry(seed: Seed) -> None:
    text = text_of(seed, "|1")
    seed.control.hset(boxes(seed), f"{LIFE}|3", text.replace("charge ", "receipt ", 1))
    header(seed, 3, 13)


def take_entry_away(seed: Seed) -> None:
    seed.control.hset(boxes(seed), f"{LIFE}|1", text_of(seed, "|2"))
    seed.control.hdel(boxes(seed), f"{LIFE}|2")
    header(seed, 1, 1)


def change_value(seed: Seed) -> None:
    text = text_of(seed, "|1").replace(digest_of('"ch_1"'), digest_of('"ch_2"'))
    seed.control.hset(boxes(seed), f"{LIFE}|1", text.replace('"ch_1"', '"ch_2"'))


def lengthen_sleep(seed: Seed) -> None:
    text = text_of(seed, "|2")
    seed.control.hset(boxes(seed), f"{LIFE}|2", re.sub(r"until=\d+", "until=1", text))


def make_signal_up(seed: Seed) -> None:
    text = signal_text("approval", seed.now, digest_of("8"), value="8")
    seed.control.hset(boxes(seed), mapping={f"{LIFE}>2": text, f"{LIFE}>approval": "1 2"})
    header(seed, 2, 8, 2)


def drop_signal(seed: Seed) -> None:
    seed.control.hdel(boxes(seed), *(f"{LIFE}{rest}" for rest in (">1", ">approval", "=k")))
    header(seed, 2, 6, 0)


def rename_signal(seed: Seed) -> None:
    text = text_of(seed, ">1").replace("approval", "refusal", 1)
    seed.control.hset(boxes(seed), mapping={f"{LIFE}>1": text, f"{LIFE}>refusal": "1"})
    seed.control.hdel(boxes(seed), f"{LIFE}>approval")


FORGERIES: dict[Forge, str] = {
    rename: "entry 1 reads 'charges saved",
    add_entry: "the log does not have entry 3, receipt",
    take_entry_away: "it lacks entry 2, cool-off",
    change_value: "by the log 'charge saved at=",
    lengthen_sleep: "until=1', by the log 'cool-off sleeps",
    make_signal_up: "the log does not have signal 2, approval",
    drop_signal: "`boxes` lacks",
    rename_signal: "signal 1 reads 'refusal",
}


def audited(seed: Seed, database: Database) -> partial[Evidence]:
    url = database.address.render_as_string(hide_password=False)
    return partial(drift_of, url, seed.client, seed.queue)


def found_by_doctor(seed: Seed, database: Database) -> list[Finding]:
    return diagnose(seed.client, seed.queue, audit=audited(seed, database))


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda each: each.__name__)
def test_the_doctor_finds_and_repairs_forged_steps_and_signals_of_a_durable_job(
    seed: Seed, database: Database, forge: Forge
) -> None:
    durable(seed)
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    assert ([], []) == compare(seed.client, database, seed.queue)

    forge(seed)

    violations, notes = compare(seed.client, database, seed.queue)
    assert notes == []
    assert any(FORGERIES[forge] in each.says for each in violations), violations
    found = found_by_doctor(seed, database)
    assert any(FORGERIES[forge] in each.says for each in found), found
    left = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))
    assert left == []
    assert true == seed.control.hgetall(boxes(seed))
    assert ([], []) == compare(seed.client, database, seed.queue)
    assert str(seed.state("a")).startswith("parked ")


@pytest.mark.parametrize("forge", [rename, take_entry_away, change_value, drop_signal])
def test_the_doctor_reports_forged_steps_that_it_cannot_repair_since_the_log_lacks_their_values(
    seed: Seed, database: Database, forge: Forge
) -> None:
    durable(seed, kept="digest")
    mirror(seed, database)
    forge(seed)

    found = found_by_doctor(seed, database)
    left = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    says = [each.says for each in left]
    if forge is rename:  # Redis has the value, and the log its digest.
        assert says == []
        assert text_of(seed, "|1").startswith("charge saved ")
    elif forge is drop_signal:
        assert [Kind.NO_SIGNAL] == [each.kind for each in left]
    else:
        assert [Kind.BOX_DIFFERS] == [each.kind for each in left]
        assert says[0].endswith("; cancel the job, or write the true value back")
        violations, _ = compare(seed.client, database, seed.queue)
        assert violations


@pytest.mark.parametrize("key", ["", "k"])
def test_a_signal_that_is_falsely_marked_as_taken_is_found(
    seed: Seed, database: Database, key: str
) -> None:
    """Checks a signal whose value was removed. A restore writes taken signals in this form."""
    claim = seed.running("a")
    seed.wait(claim)
    seed.signal("a", name="refusal", value="7", key=key)
    seed.park(claim)
    mirror(seed, database)
    assert ([], []) == compare(seed.client, database, seed.queue)

    head = text_of(seed, ">1").partition("\n")[0].removesuffix(f" key={key}")
    seed.control.hset(boxes(seed), f"{LIFE}>1", head)
    seed.control.hdel(boxes(seed), f"{LIFE}>refusal", f"{LIFE}={key}")
    header(seed, 1, 0)

    says = "signal 1, refusal, is marked as taken, and by the log no wait has taken it"
    violations, notes = compare(seed.client, database, seed.queue)
    assert ([True], []) == ([says in each.says for each in violations], notes)
    (found,) = found_by_doctor(seed, database)
    assert (Kind.BOX_DIFFERS, False) == (found.kind, found.mendable)
    assert says in found.says


@pytest.mark.parametrize("saved", [0, 2])
def test_the_doctor_reports_and_repairs_a_forged_count_of_the_saved_steps_of_a_job(
    seed: Seed, database: Database, saved: int
) -> None:
    if saved:
        durable(seed)
    else:
        seed.running("a")
        seed.signal("a", value="7", value_max=100)
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    life = next(each for each in true if len(each) == len(LIFE))
    false = true[life].replace(f"entries={saved}", f"entries={saved + 1}")
    seed.control.hset(boxes(seed), life, false)

    found = found_by_doctor(seed, database)

    assert [Kind.BOX_DIFFERS] == [each.kind for each in found]
    says = {
        0: "1 entry, and the box and the log have 0",
        2: "3 entries, and the box and the log have 2",
    }
    assert f"its header says {says[saved]} entries" in found[0].says
    violations, notes = compare(seed.client, database, seed.queue)
    assert ([found[0].says], []) == ([each.says for each in violations], notes)
    assert [] == repaired(seed, database)
    assert true == seed.control.hgetall(boxes(seed))


def two_durable_jobs(seed: Seed) -> Any:
    """Let two jobs save a step and park for a sleep, with a log that has no values. Return all fields of their
    boxes."""
    durable(seed, kept="digest")
    other = seed.running("b")
    life = OTHER_LIFE
    seed.save(other, life=life, value='"ch_2"')
    seed.wait(other, "+50000", name="cool-off", what="sleep", entry=2, life=life)
    seed.park(other, waits="2")
    return seed.control.hgetall(boxes(seed))


def repaired(seed: Seed, database: Database) -> list[Finding]:
    found = found_by_doctor(seed, database)
    assert found
    return repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))


def test_repair_writes_back_what_a_parked_job_waits_for(seed: Seed, database: Database) -> None:
    durable(seed)
    mirror(seed, database)
    line = str(seed.state("a"))
    seed.control.hset(seed.keys("state"), "a", line.replace(" waits=2 ", " waits=1 "))

    left = repaired(seed, database)

    assert ([], line) == (left, str(seed.state("a")))


def test_repair_gives_two_jobs_their_own_saved_steps_back_after_a_forger_exchanged_the_steps(
    seed: Seed, database: Database
) -> None:
    true = two_durable_jobs(seed)
    mirror(seed, database)
    lines = {job_id: str(seed.state(job_id)) for job_id in ("a", "b")}
    exchanged: dict[Any, Any] = {
        "a": lines["a"].replace(LIFE, OTHER_LIFE),
        "b": lines["b"].replace(OTHER_LIFE, LIFE),
    }
    seed.control.hset(seed.keys("state"), mapping=exchanged)

    left = repaired(seed, database)

    assert left == []
    assert true == seed.control.hgetall(boxes(seed))
    assert lines == {job_id: str(seed.state(job_id)) for job_id in ("a", "b")}


@pytest.mark.parametrize("kept", ["digest", "full"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_repair_deletes_no_saved_step_if_a_forger_changed_the_id_of_the_steps_everywhere_in_redis(
    seed: Seed, database: Database, kept: str, *, goes_on: bool
) -> None:
    durable(seed, kept)
    mirror(seed, database)
    renamed = {
        field.replace(LIFE, OTHER_LIFE): value
        for field, value in seed.control.hgetall(boxes(seed)).items()
    }
    seed.control.delete(boxes(seed))
    seed.control.hset(boxes(seed), mapping=renamed)
    line = str(seed.state("a")).replace(LIFE, OTHER_LIFE)
    seed.control.hset(seed.keys("state"), "a", line)
    assert not seed.control.hexists(boxes(seed), LIFE)

    violations, _ = compare(seed.client, database, seed.queue)
    assert any(f"life={OTHER_LIFE}, {LIFE} by the log" in each.says for each in violations)
    if goes_on:
        seed.signal("a", name="more", value="8", value_max=100)
        mirror(seed, database)
    before = seed.control.hgetall(boxes(seed))
    assert renamed.keys() <= before.keys()

    left = repaired(seed, database)

    assert [Kind.UNKNOWN] == [each.kind for each in left]
    assert "the log has events about another box of the job" in left[0].says
    assert before == seed.control.hgetall(boxes(seed))


@pytest.mark.parametrize("event", ["step_saved", "signalled"])
def test_repair_removes_no_saved_step_and_no_signal_whose_event_was_deleted_from_sql(
    seed: Seed, database: Database, event: str
) -> None:
    durable(seed)
    seed.signal("a", value="8", value_max=100)
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    with lying(database) as connection:
        connection.exec_driver_sql(
            "DELETE FROM job_event WHERE (epoch, seq) = (SELECT epoch, seq FROM job_event "
            "WHERE type = ? AND job_id = 'a' ORDER BY epoch, seq LIMIT 1)",
            (event,),
        )

    left = repaired(seed, database)

    assert [Kind.BOX_DIFFERS] == [each.kind for each in left]
    assert true == seed.control.hgetall(boxes(seed))


def test_repair_does_not_change_the_steps_of_a_job_whose_row_in_sql_names_the_id_of_other_steps(
    seed: Seed, database: Database
) -> None:
    durable(seed)
    mirror(seed, database)
    true, line = seed.control.hgetall(boxes(seed)), str(seed.state("a"))
    with lying(database) as connection:
        connection.exec_driver_sql("UPDATE job SET life = '9f3a0b1c22aa0002' WHERE job_id = 'a'")
    assert Kind.LOG_DIFFERS in {each.kind for each in found_by_doctor(seed, database)}

    (left,) = repaired(seed, database)

    assert "its row in SQL is not what its events say" in left.says
    assert line == str(seed.state("a"))
    assert true == seed.control.hgetall(boxes(seed))
    assert not seed.control.zscore(seed.keys("expiring"), f"box|{LIFE}")


def test_forged_entries_with_invalid_numbers_do_not_make_the_doctor_report_saved_steps_as_lost(
    seed: Seed, database: Database
) -> None:
    durable(seed)
    mirror(seed, database)
    true = seed.control.hgetall(boxes(seed))
    odd: dict[Any, Any] = dict.fromkeys(
        (f"{LIFE}{rest}" for rest in ("|0", "|x", "|01", ">0")), "odd"
    )
    seed.control.hset(boxes(seed), mapping=odd)

    found = found_by_doctor(seed, database)

    assert {Kind.BOX_DIFFERS} == {each.kind for each in found}
    assert [] == repaired(seed, database)
    assert true == seed.control.hgetall(boxes(seed))


def test_a_forged_list_of_signals_does_not_wake_a_parked_job(
    seed: Seed, database: Database
) -> None:
    claim = seed.running("a")
    seed.wait(claim)
    seed.park(claim)
    mirror(seed, database)
    seed.control.hset(boxes(seed), f"{LIFE}>approval", "1")

    found = found_by_doctor(seed, database)

    assert [Kind.INDEX] == [each.kind for each in found]
    assert [] == repaired(seed, database)
    assert str(seed.state("a")).startswith("parked ")


def test_a_comparison_uses_events_that_the_mirror_has_not_copied_yet(
    seed: Seed, database: Database
) -> None:
    claim = seed.running("a")
    seed.save(claim, value='"ch_1"')
    mirror(seed, database)
    seed.save(claim, entry=2, name="receipt", value='"r"')
    seed.signal("a", value="7")
    assert ([], []) == compare(seed.client, database, seed.queue)

    seed.control.hset(boxes(seed), f"{LIFE}|2", text_of(seed, "|1"))

    violations, notes = compare(seed.client, database, seed.queue)
    assert notes == []
    assert any("by the log 'receipt saved" in each.says for each in violations)


def test_verify_reports_saved_steps_that_are_older_than_the_log_as_a_note_and_not_as_a_violation(
    valkey_url: str, database: Database
) -> None:
    with Seed(valkey_url) as seed:
        claim = seed.running("a")
        seed.save(claim, value='"ch_1"')
        seed.save(claim, entry=2, name="other", what="begin")
        # Without an audit log, Redis keeps only the last events.
        seed.control.xtrim(seed.keys("outbox"), maxlen=1, approximate=False)
        mirror(seed, database)
        seed.save(claim, entry=3, name="receipt", value='"r"')

        violations, notes = compare(seed.client, database, seed.queue)

        assert violations == []
        (note,) = notes
        assert "1 durable job has entries or signals without an event, first a" in note.says
        assert "the log does not have the job's beginning" in note.says
        seed.control.hset(boxes(seed), f"{LIFE}|3", text_of(seed, "|1"))
        violations, _ = compare(seed.client, database, seed.queue)
        assert any("by the log 'receipt saved" in each.says for each in violations)


@pytest.mark.parametrize("kept", ["full", "digest"])
@pytest.mark.parametrize("is_new", [True, False])
def test_the_doctor_finds_a_saved_step_that_is_in_the_log_but_not_in_redis(
    seed: Seed, database: Database, kept: str, is_new: bool
) -> None:
    value, claim = '"ch_1"', seed.running("a")
    if not is_new:
        seed.save(claim, name="first", value="1", kept=kept)
    entry = 1 if is_new else 2
    record = ("a", claim.fence, LIFE, "save", entry, "charge", "")
    args = {"slot": SLOT, "number": 1, "worker": WORKER}
    scene = Scene("save", args, [record], {1: pack_result(value, kept)})
    assert broken_after(1, seed, scene)

    found = found_by_doctor(seed, database)
    left = repair(seed.client, seed.queue, found, by="ada", audit=audited(seed, database))

    if kept == "full":
        assert left == []
        assert text_of(seed, f"|{entry}").endswith(f"digest={digest_of(value)}\n{value}")
        assert seed.save(claim, entry=entry, value=value) == {}
        assert seed.save(claim, entry=entry + 1, name="receipt") == {}
        seed.complete(claim)
        mirror(seed, database)
        assert LogVerdict.HOLDS is verify(database).verdict
    else:
        assert {Kind.NO_BOX if is_new else Kind.BOX_DIFFERS} == {each.kind for each in left}


def test_one_statement_reads_events_of_a_bounded_number_of_jobs() -> None:
    lives = {f"j-{n}": f"{n:016x}" for n in range(1_000)}
    large = {f"{n:016x}": write_header(f"j-{n}", 4_000, 5, 10) for n in range(500)}

    chunks = list(chunks_of(lives, large))

    assert list(lives) == [job_id for chunk in chunks for job_id in chunk]
    sizes = [len(chunk) for chunk in chunks]
    assert (3, JOBS_CHUNK) == (sizes[0], max(sizes))
    assert all(4_010 * (size - 1) < MEMBERS_CHUNK for size in sizes[:166])


def test_comparing_the_saved_steps_of_a_queue_without_durable_jobs_sends_no_sql_statement(
    seed: Seed,
) -> None:
    seed.enqueue("plain")
    snapshot = seed.snapshot()
    lines = lines_of_jobs(snapshot["state"], snapshot["jobs"])
    assert "plain" in lines

    # Without a connection, each statement would raise an error.
    tell_boxes(None, seed.queue, snapshot, read_log(snapshot), lines, OutboxId(1, 1))  # type: ignore[arg-type]


def lose_the_job(seed: Seed) -> None:
    for key in ("state", "jobs"):
        seed.control.hdel(seed.keys(key), "a")
    seed.control.zrem(seed.keys("parked"), "a")


def move_the_box(seed: Seed) -> None:
    found: dict[Any, Any] = seed.control.hgetall(boxes(seed))
    seed.control.delete(boxes(seed))
    moved = {OTHER_LIFE + name.removeprefix(LIFE): text for name, text in found.items()}
    seed.control.hset(boxes(seed), mapping=moved)


@pytest.mark.parametrize("forge", [lose_the_job, move_the_box], ids=lambda each: each.__name__)
def test_repair_does_not_delete_the_saved_steps_of_a_job_that_is_alive_by_the_log(
    seed: Seed, database: Database, forge: Forge
) -> None:
    durable(seed, kept="digest")
    mirror(seed, database)
    seed.enqueue("anchor")
    mirror(seed, database)
    forge(seed)
    before = seed.control.hgetall(boxes(seed))

    left = repaired(seed, database)
    seed.claim()

    assert "a" in {each.job_id for each in left}
    assert before == seed.control.hgetall(boxes(seed))
    if forge is move_the_box:
        assert any(f"the one of life {OTHER_LIFE}" in each.says for each in left)


def test_a_finding_about_saved_steps_names_their_job(seed: Seed, database: Database) -> None:
    durable(seed)
    mirror(seed, database)
    seed.control.hset(boxes(seed), f"{LIFE}>refusal", "1")

    (found,) = found_by_doctor(seed, database)

    assert "a" == found.job_id
    assert f"box '{LIFE}' of job a" in found.says
