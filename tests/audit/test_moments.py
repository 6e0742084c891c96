"""Moments of the log: which jobs ran at a moment, which jobs waited, and for what."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from sql_audit.errors import HistoryUnknown
from sql_audit.mirror.turn import Mirror
from sql_audit.queries import moments, waits
from sql_audit.store.connection.database import Database
from sql_audit.times import readable
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.command import audit
from tests.kit.outbox import StreamWriter, enqueue

T0 = 1_795_300_000_000
MINUTE = T0 - T0 % 60_000
LANE = "2+task=send+tenant=acme"
SCOPES = [["task=send", 2], ["tenant=acme", 1], ["queue", 9]]


@pytest.fixture
def one_at_a_time(writer: StreamWriter, mirror: Mirror) -> None:
    """Run three jobs of one tenant under a cap of 1, and cancel a fourth job.

    Job a runs from 0 to 100 ms, job b until 300 ms, and then job c. Job d is cancelled.
    """

    def at(ms: int) -> None:
        writer.now_ms = T0 + ms - 1

    at(0)
    writer.jobs("enqueued", *([i, 1, None, "send", "normal", 3, 3, "d", LANE] for i in "abcd"))
    at(0)
    a = writer.jobs("claimed", ["a", 1, SCOPES], by="w-1")
    at(100)
    writer.jobs("succeeded", ["a", a], by="w-1")
    at(100)
    b = writer.jobs("claimed", ["b", 1, SCOPES], by="w-2")
    at(200)
    writer.jobs("cancelled", ["d"], by="ada")
    at(300)
    writer.jobs("rolled_back", ["b", b, None, "stopping"], by="w-2")
    at(300)
    writer.jobs("claimed", ["c", 1, SCOPES], by="w-1")
    at(400)
    writer.queue_event("paused")
    auditlog.drain(mirror)


def call(database: Database, *arguments: str) -> Result:
    url = database.address.render_as_string(hide_password=False)
    return audit(*arguments, "--audit", url)


def said(database: Database, *arguments: str) -> str:
    result = call(database, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    "at_ms, running, waiting",
    [(-1, "", ""), (0, "a", "bcd"), (99, "a", "bcd"), (150, "b", "cd"), (250, "b", "c"),
     (350, "c", "b")],
)  # fmt: skip
def test_a_query_about_a_moment_returns_running_and_waiting_jobs(
    one_at_a_time: None, database: Database, at_ms: int, running: str, waiting: str
) -> None:
    moment = moments.at(database.readers, QUEUE, T0 + at_ms)

    assert "".join(sorted(each.job_id for each in moment.running)) == running
    assert "".join(sorted(each.job_id for each in moment.waiting)) == waiting
    if running:
        assert moment.scopes["tenant=acme"] == (1, [running])


def test_a_query_about_a_moment_outside_the_log_returns_a_caveat(
    one_at_a_time: None, writer: StreamWriter, database: Database
) -> None:
    """Checks moments before the first and after the last event. The caveat says where the log begins or ends."""
    first = auditlog.events(database, QUEUE)[0]["at_ms"]

    def caveats(at_ms: int) -> str:
        return "; ".join(moments.at(database.readers, QUEUE, at_ms).caveats)

    assert "begins at 2026-11-21" in caveats(first - 1)
    assert (caveats(first), caveats(writer.now_ms)) == ("", "")
    assert f"ends at {readable(writer.now_ms)}" in caveats(writer.now_ms + 1)
    told = said(database, "at", "2036-01-01", "--queue", QUEUE)
    assert f"the log of queue {QUEUE} ends at" in told


@pytest.mark.parametrize("knows", ["nothing", "the beginning", "all jobs but b"])
def test_the_wait_of_a_lost_job_ends_at_the_loss(
    knows: str, one_at_a_time: None, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks a question that is asked after the loss, about a moment before the loss."""
    outbox = writer.keys("outbox")
    entry, fields = writer.log[0] if knows == "the beginning" else writer.log[-1]
    writer.source.redis.delete(outbox)
    if knows != "nothing":
        writer.source.redis.xadd(outbox, fields, id=entry)
    writer.now_ms = T0 + 1_000
    if knows == "all jobs but b":
        writer.begin(writer.epoch + 1_000, "outbox_lost", entry)
        c = ["c", "running", "send", "normal", 3, 3, 1, None, 1, 0, 0, 0, "7-7", "w-1", T0, None]
        writer.jobs("baseline", [*c, LANE])
        writer.queue_event("policy_changed", "baseline", "pending", "done")
    else:
        last = None if knows == "nothing" else entry
        writer.begin(writer.epoch + 1_000, "created" if last is None else "replid_changed", last)
    until = writer.now_ms
    auditlog.drain(mirror)
    assert auditlog.one(database, "SELECT state FROM job WHERE job_id = 'b'")["state"] in {
        "lost", "gone",
    }  # fmt: skip

    def waiting(at_ms: int) -> list[str]:
        return [each.job_id for each in moments.at(database.readers, QUEUE, at_ms).waiting]

    assert (waiting(T0 + 350), waiting(until - 1), waiting(until)) == (["b"], ["b"], [])
    (caveat,) = moments.at(database.readers, QUEUE, T0 + 350).caveats
    assert f"Redis forgot jobs of queue {QUEUE} at {readable(until)}" in caveat
    assert moments.at(database.readers, QUEUE, until).caveats == ()
    (answer,) = waits.why(database.readers, "b", QUEUE)
    wait = answer.waits[-1]
    assert (wait.claim, wait.ended, wait.until_ms) == (None, answer.state, until)
    told = said(database, "why", "b")
    assert "until Redis forgot it" in told

    writer.now_ms += 500
    b = ["b", 1, None, "ready", "send", "normal", 3, 3, "d", T0, 1, 0, 0, 0, None, LANE]
    writer.jobs("restored", b)
    back = writer.now_ms
    auditlog.drain(mirror)

    (answer,) = waits.why(database.readers, "b", QUEUE)
    *before, forgotten, now = answer.waits
    assert (forgotten.since_ms, forgotten.until_ms, forgotten.ended) == (
        wait.since_ms,
        until,
        "lost",
    )
    assert (now.since_ms, now.claim, now.ended) == (back, None, None)
    assert [each.claim for each in before] == ([] if knows == "the beginning" else [1])


def test_the_wait_of_a_cancelled_job_ends_at_its_cancellation(
    one_at_a_time: None, database: Database
) -> None:
    (answer,) = waits.why(database.readers, "d", QUEUE)

    (wait,) = answer.waits
    assert (wait.waited_ms, wait.claim, wait.ended) == (200, None, "cancelled")
    assert wait.held_back_by == "tenant=acme"
    told = said(database, "why", "d")
    assert "until it was cancelled; held back by tenant=acme" in told


def test_a_wait_shows_how_long_each_scope_was_full_and_its_holders(
    one_at_a_time: None, database: Database
) -> None:
    (answer,) = waits.why(database.readers, "c")

    (wait,) = answer.waits
    assert (wait.waited_ms, wait.claim, wait.worker) == (300, 1, "w-1")
    assert wait.others_claimed == 2
    told = {each.scope: (each.limit, each.full_ms, each.named) for each in wait.in_front}
    assert told == {
        "task=send": ("2", 0, ["a", "b"]),
        "tenant=acme": ("1", 300, ["a", "b"]),
        "queue": ("9", 0, ["a", "b"]),
    }


def test_a_wait_names_the_rate_that_held_the_job_back(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks two exhausted rates. The answer names the tenant's rate, which held the job back for longer."""
    task, tenant = ["task@1s=send", 1, 1_000, 1], ["tenant@60s=acme", 3, 60_000, 3]
    lane = "2+task@1s=send+tenant@60s=acme"

    def at(ms: int) -> None:
        writer.now_ms = T0 + ms - 1

    at(0)
    writer.jobs("enqueued", *([i, 1, None, "send", "normal", 3, 3, "d", lane] for i in "abc"))
    for job_id, begin in (("a", 0), ("b", 1_000), ("c", 2_000)):
        at(begin)
        fence = writer.jobs("claimed", [job_id, 1, [task, tenant]])
        writer.jobs("succeeded", [job_id, fence])
    at(2_500)
    writer.jobs("enqueued", ["d", 1, None, "send", "normal", 3, 3, "d", lane])
    at(20_000)
    writer.jobs("claimed", ["d", 1, [task, tenant]])
    auditlog.drain(mirror)

    (answer,) = waits.why(database.readers, "d")

    (wait,) = answer.waits
    assert wait.held_back_by == "tenant@60s=acme"
    assert {each.scope: each.full_ms for each in wait.in_front} == {
        "task@1s=send": 500,
        "tenant@60s=acme": 17_500,
    }
    told = said(database, "why", "d")
    assert "held back by tenant@60s=acme; " in told
    assert "tenant@60s=acme ≤ 3 per 60 s: exhausted for 17.5 s" in told


def test_an_unfinished_wait_names_the_holders_of_the_full_scope(
    one_at_a_time: None, database: Database
) -> None:
    (answer,) = waits.why(database.readers, "b", QUEUE)

    first, now = answer.waits
    assert first.waited_ms == 100
    assert (now.claim, now.waited_ms) == (None, 100)
    assert [(e.scope, e.full_ms, e.named) for e in now.in_front if e.full_ms] == [
        ("tenant=acme", 100, ["c"])
    ]


def test_audit_why_of_an_unknown_job_is_an_error(one_at_a_time: None, database: Database) -> None:
    with pytest.raises(HistoryUnknown):
        waits.why(database.readers, "ghost")


def test_audit_why_names_the_full_scope_and_its_holders(
    one_at_a_time: None, database: Database
) -> None:
    told = said(database, "why", "c")
    document = json.loads(said(database, "why", "c", "--json"))

    assert "tenant=acme ≤ 1: full for 300 ms, 2 claims of other jobs, the last a, b" in told
    assert document["jobs"][0]["waits"][0]["claim"] == 1


def test_audit_why_and_audit_at_show_delays_suspects_and_lost_workers(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    def at(ms: int) -> None:
        writer.now_ms = T0 + ms - 1

    at(0)
    writer.jobs("enqueued", ["p", 1, None, "send", "normal", 3, 3, "d"])
    writer.jobs("enqueued", ["late", None, T0 + 90_000, "send", "normal", 3, 3, "d"])
    at(1_000)
    first = writer.jobs("claimed", ["p", 1, None], by="w-1")
    at(31_000)
    writer.jobs("lease_expired", ["p", first, "w-1", 1, "ready"], by="w-2")
    at(31_000)
    second = writer.jobs("claimed", ["p", 2, None], by="w-2")
    at(31_000)
    writer.jobs("rolled_back", ["p", second, T0 + 33_000, "suspect", 0], by="w-2")
    auditlog.drain(mirror)

    told = said(database, "why", "p")

    assert "claim 1 by w-1 was in force: its worker was lost, and the lease ran out" in told
    assert f"until {readable(T0 + 31_000)}: claim 1" in told
    assert f"from {readable(T0 + 31_000)} on: a suspect, since it had lost a worker" in told
    assert "another suspect ran in the process of w-2" in told
    assert "it was enqueued with a delay" in said(database, "why", "late")
    for moment, scheduled in ((T0 + 500, 1), (T0 + 40_000, 2)):
        assert f"0 waiting, {scheduled} scheduled" in said(
            database, "at", readable(moment), "--queue", QUEUE
        ).replace("1 waiting", "0 waiting")


@pytest.mark.parametrize("claimed", [True, False], ids=["claimed", "still-waits"])
def test_audit_why_separates_the_delay_of_a_retry_from_the_wait_for_a_worker(
    claimed: bool, writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    """Checks that the delay ends when the job is due. From then on the job waits for a worker."""

    def at(ms: int) -> None:
        writer.now_ms = T0 + ms - 1

    at(0)
    enqueue(writer, "p", "other")
    at(1_000)
    first = writer.jobs("claimed", ["p", 1])
    at(2_000)
    error = {"type": "ValueError", "message": "no"}
    writer.jobs("retried", ["p", first, T0 + 12_000, 1, error])
    at(20_000)
    if claimed:
        writer.jobs("promoted", ["p"])
        writer.now_ms -= 1
        writer.jobs("claimed", ["p", 2])
    else:
        writer.jobs("claimed", ["other", 1])
    auditlog.drain(mirror)

    (answer,) = waits.why(database.readers, "p")

    (delay,), (_, wait) = answer.pauses, answer.waits
    assert (delay.since_ms - T0, delay.until_ms) == (2_000, T0 + 12_000)
    assert (wait.since_ms, wait.until_ms) == (T0 + 12_000, T0 + 20_000)
    lines = [line for line in said(database, "why", "p").splitlines() if " from " in line]
    assert lines[0].startswith("  waited 1000 ms from ")
    assert lines[1].endswith(": its last attempt failed, and the next one has a delay")
    ends = "until claim 2 by w-1" if claimed else "and still waits"
    assert lines[2].startswith(f"  waited 8000 ms from {readable(T0 + 12_000)}")
    assert f"{ends}; no cap held it back: no worker was free, or the queue was paused; " in lines[2]


def test_audit_why_lists_a_zero_length_wait_first_if_a_delay_begins_at_the_same_moment(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.now_ms = T0 - 1
    writer.jobs("enqueued", ["p", 1, None, "send", "normal", 3, 3, "d"])
    writer.now_ms = T0 - 1
    first = writer.jobs("claimed", ["p", 1])
    writer.now_ms = T0 - 1
    error = {"type": "ValueError", "message": "no"}
    writer.jobs("retried", ["p", first, T0 + 10_000, 1, error])
    auditlog.drain(mirror)

    (wait, delay) = [each for each in said(database, "why", "p").splitlines() if " from " in each]

    assert f"waited 0 ms from {readable(T0)} until claim 1 by w-1; nothing held it back; " in wait
    assert f"could not be claimed from {readable(T0)} on: its last attempt failed" in delay


def test_audit_at_shows_running_jobs_waiting_jobs_and_holders_of_scopes(
    one_at_a_time: None, database: Database
) -> None:
    told = said(database, "at", str(T0 + 150), "--queue", QUEUE)
    document = json.loads(said(database, "at", str(T0 + 150), "--queue", QUEUE, "--json"))

    assert "under task=send ≤ 2, tenant=acme ≤ 1, queue ≤ 9" in told
    assert "tenant=acme: 1 of 1" in told
    assert "2 waiting" in told
    assert document["queues"][QUEUE]["scopes"]["tenant=acme"] == {"cap": 1, "holders": ["b"]}


def test_audit_at_shows_all_queues_of_the_log(
    one_at_a_time: None,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    database: Database,
) -> None:
    moment = str(T0 + 150)
    assert said(database, "at", moment) == said(database, "at", moment, "--queue", QUEUE)

    StreamWriter(writer.source, "other").life("x")
    auditlog.drain(make_mirror("other"))
    told = said(database, "at", moment).splitlines()
    heads = [line.split(" at ")[0] for line in told if " at 2026-" in line and "running" in line]
    assert heads == sorted([QUEUE, "other"])


def test_history_shows_the_caps_in_force_at_a_claim(
    one_at_a_time: None, database: Database
) -> None:
    assert "under task=send ≤ 2, tenant=acme ≤ 1" in said(database, "history", "c")


def test_the_sql_views_count_successes_and_waiting_jobs_and_the_claims_of_workers_and_caps(
    one_at_a_time: None, database: Database
) -> None:
    def view(name: str) -> list[dict[str, object]]:
        return auditlog.rows(database, f"SELECT * FROM {name} ORDER BY 1, 2")

    assert view("throughput_per_minute") == [
        {
            "queue": QUEUE,
            "task": "send",
            "minute_ms": MINUTE,
            "minute": "2026-11-21 22:26:00.000",
            "succeeded": 1,
        }
    ]
    (lane,) = view("waiting_by_lane")
    assert (lane["lane"], lane["waiting"]) == (LANE, 1)
    workers = {row["worker"]: (row["claims"], row["busy_ms"]) for row in view("worker_utilisation")}
    assert workers == {"w-1": (1, 100), "w-2": (1, 200)}
    held = {row["scope"]: (row["holders"], row["cap"]) for row in view("scope_occupancy")}
    assert held == {"task=send": (1, 2), "tenant=acme": (1, 1), "queue": (1, 9)}
    assert view("failures_by_error") == []


def test_a_view_counts_failures_by_error(
    writer: StreamWriter, mirror: Mirror, database: Database
) -> None:
    writer.jobs("enqueued", ["a", 1, None, "send", "normal", 3, 3])
    error = {"type": "ValueError", "message": "no"}
    for n, (kind, what) in enumerate([("retried", None), ("died", "final")], start=1):
        fence = writer.jobs("claimed", ["a", n])
        writer.jobs(kind, ["a", fence, what, n, error])
    auditlog.drain(mirror)

    failed = auditlog.one(database, "SELECT * FROM failures_by_error")

    assert (failed["error_type"], failed["claims"], failed["died"]) == (
        "ValueError", 2, 1,
    )  # fmt: skip
