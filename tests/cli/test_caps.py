"""The commands `rq-core cap` and `rq-core caps`, and what `rq-core job` prints about a waiting job, on a real
server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rq_core import App, Breaker, Cap, Rate
from rq_core.app.task import Task
from rq_core.model.job import Claim
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls import claims
from tests.cli.conftest import CommandLine


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    with App(valkey_url) as made:
        yield made


def send(tenant: str, to: str = "") -> None: ...


@pytest.fixture
def task(app: App) -> Task[[str, str], None]:
    made = app.task(queue="mail", caps=[Cap(10), Cap(1, per="tenant", name="tenant")])(send)
    app.apply_settings()
    return made


def claim(app: App, limit: int = 10) -> list[Claim]:
    client = app.client
    return list(client.run(claims.claim("mail", "w-1", limit)).jobs)


def enqueue(task: Task[[str, str], None], *ids: str, tenant: str = "acme") -> None:
    for job_id in ids:
        task.with_options(id=job_id).enqueue(tenant, "")


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_cap_command_logs_who_changed_a_cap_and_why(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    printed = cli.ok("cap", "mail", "task=send", "20", "--by", "ada", "--reason", "new servers")

    assert printed == "task=send is now 20 (version 2)\n"
    _, last = app.client.run(app.client.calls.audit.read_outbox("mail", "-", 100))[-1]
    assert (last["type"], last["by"], last["why"]) == ("cap_changed", "ada", "new servers")
    assert cli.ok("cap", "mail", "task=send", "20") == "task=send was already 20 (version 2)\n"
    assert cli.json("cap", "mail", "tenant=acme", "none") == {
        "queue": "mail",
        "scope": "tenant=acme",
        "limit": "none",
        "version": 1,
        "outcome": "changed",
    }


def test_the_time_until_a_rate_admits_again_follows_the_clock_of_redis(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks a clock of Redis that was set back by an hour. The printed time is more than 0 s, and at most the window
    of the rate."""
    task = app.task(queue="mail", caps=[Rate(1, per_seconds=10)])(send)
    app.apply_settings()
    enqueue(task, "first", "next")
    assert len(claim(app)) == 1
    client = app.client
    now_ms = client.run(client.calls.reads.now_ms("mail"))
    keys = queue_keys("mail")
    late = ["ZADD", keys("scheduled"), now_ms + 3_600_000, "rate|task@10s=send"]
    client.run(client.calls.delivery.ask([late]))
    monkeypatch.setattr("time.time", lambda: now_ms / 1000 + 3_600)

    assert re.search(r"resumes +in (9|10) s ", cli.ok("job", "next"))
    assert re.search(r"resumes in (9|10) s ", cli.ok("caps", "mail"))
    assert "'rate|task@10s=send' at" in cli("doctor", "mail").stdout


def test_the_cap_command_with_the_value_code_restores_the_declared_limit(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    cli.ok("cap", "mail", "task=send", "20")
    cli.ok("cap", "mail", "tenant=acme", "0")

    assert cli.ok("cap", "mail", "task=send", "code", "--by", "ada", "--reason", "calm again") == (
        "task=send is now 10 (version 3, from code)\n"
    )
    _, last = app.client.run(app.client.calls.audit.read_outbox("mail", "-", 100))[-1]
    assert (last["type"], last["by"], last["why"]) == ("cap_changed", "ada", "calm again")
    assert cli.ok("cap", "mail", "tenant=acme", "code") == "tenant=acme is now 1 (as tenant)\n"
    assert cli.ok("cap", "mail", "tenant=acme", "code") == "tenant=acme was already 1 (as tenant)\n"
    assert "no worker declares" in cli.line(1, "cap", "mail", "queue", "code")


def test_the_cap_command_refuses_an_unknown_task_unless_forced(
    cli: CommandLine, task: Task[[str, str], None]
) -> None:
    cli.ok("enqueue", "mail", "plain")
    cli.ok("cancel", cli.ok("enqueue", "mail", "gone").strip())

    said = cli.line(2, "cap", "mail", "task=sned", "5")

    assert said == (
        "queue 'mail' has seen no task 'sned': known are gone, plain, send."
        " --force sets it anyway, for a task that will be deployed later"
    )
    assert "task=sned" not in cli.ok("caps", "mail")
    assert cli.ok("cap", "mail", "task=sned", "5", "--force") == (
        "task=sned is now 5 (version 1)\n"
    )
    assert "is now 6" in cli.ok("cap", "mail", "task=sned", "6")
    assert "is now 4" in cli.ok("cap", "mail", "task=plain", "4")
    assert "is now 3" in cli.ok("cap", "mail", "task=gone", "3")


def test_the_cap_command_accepts_a_rate_as_it_is_printed(cli: CommandLine, app: App) -> None:
    app.task(queue="mail", caps=[Rate(10, per_seconds=60, per="tenant", name="tenant")])(send)
    app.apply_settings()

    assert (
        cli.ok("cap", "mail", "tenant@60s", "100/60s") == "tenant@60s is now 100/60s (version 2)\n"
    )
    assert "is now 5/60s (version 3)" in cli.ok("cap", "mail", "tenant@60s", "5/60000ms/1")
    assert "is now 7/60s/3 (version 1)" in cli.ok("cap", "mail", "tenant@60s=a", "7/60s/3")
    assert "must be per 60s" in cli.line(2, "cap", "mail", "tenant@60s", "5/1s")


def test_the_cap_command_reads_a_plain_number_for_a_rate_with_costs_as_units_per_window(
    cli: CommandLine, app: App
) -> None:
    """Checks that a plain number means units per window, and no cap."""
    rate = Rate(10, per_seconds=60, per="tenant", name="tenant", cost="tokens", burst=9)

    @app.task(queue="mail", caps=[rate])
    def ask(tenant: str, tokens: int = 1) -> None: ...

    app.apply_settings()

    for limit, is_now in (("100/60s/50", "100/60s/50"), ("70", "70/60s/50"), ("0", "0")):
        assert f"is now {is_now} (" in cli.ok("cap", "mail", "tenant@60s:tokens", limit)
    assert "is now 7/60s/3 (" in cli.ok("cap", "mail", "tenant@60s:tokens=a", "7/60s/3")
    assert "must be per 60s" in cli.line(2, "cap", "mail", "tenant@60s:tokens", "5/1s")


def test_the_cap_command_keeps_the_cooldown_and_checks_the_bounds_of_a_breaker(
    cli: CommandLine, app: App
) -> None:
    """Checks that a limit without a cooldown keeps the cooldown, and that the bounds are those of Breaker."""
    breaker = Breaker(20, per_seconds=60, cooldown=30, per="tenant", name="tenant")
    app.task(queue="mail", breaker=breaker)(send)
    app.apply_settings()
    scope = "tenant@60s:failures"

    for limit, is_now in (
        ("5/60s", "5/60s/30000"),
        ("7", "7/60s/30000"),
        ("9/60s/500", "9/60s/500"),
    ):
        assert f"is now {is_now} (" in cli.ok("cap", "mail", scope, limit)
    assert "is now 0 (" in cli.ok("cap", "mail", f"{scope}=a", "0")
    assert "must have a cooldown" in cli.line(2, "cap", "mail", f"{scope}=a", "5/60s")
    for limit in ("1001", "1001/60s/500"):
        assert "must be a whole number from 1 to 1,000" in cli.line(2, "cap", "mail", scope, limit)
    assert "must be from 0.001 to 86,400" in cli.line(2, "cap", "mail", scope, "5/60s/86400001")
    assert "must be per 60s" in cli.line(2, "cap", "mail", scope, "5/1s/500")


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("mail", "task=send", "ten"), 2, "must be a number from 0"),
        (("mail", "tennant", "1"), 2, "queue 'mail' has no scope 'tennant'"),
        (("mail", "tenant=a b", "1"), 2, "percent-encoded"),
        (("nowhere", "queue", "1"), 2, "there is no queue 'nowhere'"),
        (("mail", "task=send", "5", "--version", "9"), 1, "it is 10 now, version 1"),
    ],
)
def test_the_error_of_an_invalid_cap_is_one_line(
    cli: CommandLine,
    task: Task[[str, str], None],
    words: tuple[str, ...],
    status: int,
    says: str,
) -> None:
    assert says in cli.line(status, "cap", *words)


def test_the_cap_command_refuses_a_negative_limit(
    cli: CommandLine, task: Task[[str, str], None]
) -> None:
    assert "must be a number from 0" in cli.line(2, "cap", "mail", "task=send", "--", "-1")


def test_the_caps_command_prints_a_table_of_scopes(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    enqueue(task, "a-1", "a-2", "a-3")
    enqueue(task, "b-1", tenant="b")
    claim(app)

    # However many seconds it took to get here.
    table = words(re.sub(r"\b\d+ s\b", "0 s", cli.ok("caps", "mail")))

    assert ["scope", "cap", "holders", "waiting", "oldest", "wait"] in table
    assert ["task=send", "10", "2", "0"] in table
    assert ["tenant", "1", "each", "2", "2", "0", "s"] in table
    assert ["tenant=acme", "1", "1", "2", "0", "s", "as", "tenant"] in table
    assert ["tenant=b", "1", "1", "0", "as", "tenant"] in table


def test_the_caps_command_does_not_print_the_word_each_beside_a_limit_that_several_tasks_share(
    cli: CommandLine, app: App
) -> None:
    """Checks that "4 each" is not printed. A named cap counts the jobs of all its tasks together."""
    app.task(queue="mail", name="one", caps=[Cap(4, name="gpu")])(send)
    app.task(queue="mail", name="other", caps=[Cap(4, name="gpu")])(send)
    app.apply_settings()

    table = words(cli.ok("caps", "mail"))

    assert ["gpu", "4", "0", "0"] in table
    assert {"gpu": True} == {
        each["scope"]: each["keyless"]
        for each in cli.json("caps", "mail")
        if each["scope"] == "gpu"
    }


def test_the_caps_command_shows_who_set_a_limit(
    cli: CommandLine, task: Task[[str, str], None]
) -> None:
    cli.ok("cap", "mail", "task=send", "3", "--by", "ada")

    (row,) = [line for line in cli.ok("caps", "mail").splitlines() if "task=send" in line]

    assert re.search(r"set live by ada \d+ s ago \(.* UTC\); code says 10", row)
    found = {status["scope"]: status for status in cli.json("caps", "mail")}
    assert (found["task=send"]["set_by"], found["task=send"]["declared"]) == ("ada", "10")
    assert abs(found["task=send"]["set_at_ms"] - time.time() * 1000) < 60_000
    assert (found["tenant"]["set_by"], found["tenant"]["declared"]) == (None, None)


def test_the_caps_command_shows_the_weights_of_a_fair_queue(cli: CommandLine, app: App) -> None:
    app.task(queue="mail", caps=[Cap(10)])(send)
    app.queue("mail", fair="tenant", weights={"acme": 3})
    app.apply_settings()
    cli.ok("cap", "mail", "weight=b", "2", "--by", "ada")

    table = words(cli.ok("caps", "mail"))

    assert ["weight=acme", "weighs", "3"] in table
    (row,) = [row for row in table if row[:1] == ["weight=b"]]
    assert row[1:7] == ["weighs", "2", "set", "live", "by", "ada"]


def test_the_caps_command_shows_when_exhausted_rates_admit_again(
    cli: CommandLine, app: App
) -> None:
    """Checks the line of a family. The line says when the first exhausted rate admits a job, and that an operator set
    the limit."""
    rate = Rate(1, per_seconds=3600, per="tenant", name="tenant")
    task = app.task(queue="mail", caps=[rate])(send)
    app.apply_settings()
    cli.ok("cap", "mail", "tenant@3600s", "2")
    enqueue(task, "a-1", "a-2", tenant="a")
    enqueue(task, "b-1", "b-2", tenant="b")
    assert len(claim(app)) == 2

    lines = cli.ok("caps", "mail").splitlines()

    (family,) = [line for line in lines if line.strip().startswith("tenant@3600s ")]
    assert re.search(r"2/3600s each.* the first resumes in .*; set live by", family)
    (key,) = [line for line in lines if "tenant@3600s=a" in line]
    assert re.search(r" resumes in .*; as tenant@3600s", key)


def pause_key(cli: CommandLine, app: App, *options: str) -> None:
    """Pause the key of a rate, so that a job waits for it."""
    task = app.task(queue="mail", caps=[Rate(100, per_seconds=1, per="tenant", name="tenant")])(
        send
    )
    app.apply_settings()
    cli.ok("pause-scope", "mail", "tenant@1s=a", *options)
    enqueue(task, "a-1", tenant="a")
    assert claim(app) == []


def line_of(cli: CommandLine, scope: str, *options: str) -> str:
    (line,) = [x for x in cli.ok("caps", "mail", *options).splitlines() if x.split()[:1] == [scope]]
    return line.rstrip()


def test_for_a_family_with_one_paused_key_the_caps_command_shows_when_that_pause_ends(
    cli: CommandLine, app: App
) -> None:
    """Checks that the time is not that of a rate without a pause, which resumes within 10 ms."""
    pause_key(cli, app, "--for", "3600")

    for options in ((), ("--limit", "1")):
        line = line_of(cli, "tenant@1s", *options)
        assert re.search(r" the first resumes in (59 min|1 h)", line)


def test_the_caps_command_shows_no_time_for_a_pause_without_an_end(
    cli: CommandLine, app: App
) -> None:
    """Checks the line of the family, and the line of the key under a limit of 0."""
    pause_key(cli, app)

    assert line_of(cli, "tenant@1s").endswith(" paused until an operator resumes the scope")
    cli.ok("cap", "mail", "tenant@1s=a", "0")
    assert "resume" not in line_of(cli, "tenant@1s=a")


def test_the_caps_command_prints_no_more_scopes_than_its_limit(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    for tenant in "abcde":
        enqueue(task, f"{tenant}-1", tenant=tenant)
    claim(app)

    assert cli.ok("caps", "mail", "--limit", "3").endswith("the first 3; --limit shows more\n")
    assert "--limit" not in cli.ok("caps", "mail", "--limit", "7")
    assert [s["scope"] for s in cli.json("caps", "mail", "--limit", "3")] == [
        "task=send", "tenant", "tenant=a"
    ]  # fmt: skip


def test_the_caps_command_says_that_a_queue_has_no_caps(cli: CommandLine) -> None:
    cli.ok("enqueue", "mail", "send")

    assert cli.ok("caps", "mail") == "nothing limits the jobs of mail\n"


def test_the_job_command_shows_the_scope_for_which_a_job_waits(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    enqueue(task, "one", "two", "three")
    claim(app)

    printed = cli.ok("job", "three")
    rows = dict(re.split("  +", line, maxsplit=1) for line in printed.splitlines())

    assert rows["lane"] == "2+task=send+tenant=acme"
    assert rows["waits for"] == "tenant=acme"
    assert rows["cap"] == "1, held by 1"
    assert re.match(r"one at w-1, since \d+ s ago", rows["held by"])
    assert rows["ahead"] == "1 in its lane"
    found = cli.json("job", "two")
    assert (found["waits_for"], found["limit"], found["ahead"]) == ("tenant=acme", "1", 0)
    assert [(h["id"], h["worker"]) for h in found["held_by"]] == [("one", "w-1")]
    # The one that runs waits for nothing.
    assert "waits for" not in cli.ok("job", "one")
    assert cli.json("job", "one")["lane"] == "2+task=send+tenant=acme"


def test_the_job_command_counts_as_ahead_only_jobs_that_may_run_earlier(
    cli: CommandLine, app: App
) -> None:
    """Checks four kinds of jobs that do not count: jobs of blocked lanes, cancelled jobs, later jobs, and jobs of lower
    priorities."""
    wide = app.task(queue="mail", name="wide", caps=[Cap(99)])(send)
    full = app.task(queue="mail", name="full", caps=[Cap(0)])(send)
    plain = app.task(queue="mail", name="plain")(send)
    app.apply_settings()

    def put(task: Task[[str, str], None], job_id: str, **options: Any) -> None:
        task.with_options(id=job_id, **options).enqueue("a", "")

    put(full, "blocked", priority="high")
    put(wide, "w-1")
    put(plain, "p-1")
    put(plain, "p-gone")
    put(wide, "w-2")
    put(plain, "p-2")
    put(wide, "w-3")
    put(plain, "p-high", priority="high")
    put(wide, "w-low", priority="low")
    put(wide, "w-high", priority="high")
    cli.ok("cancel", "p-gone")

    found = {i: cli.json("job", i) for i in ("p-2", "w-3", "w-2", "p-high", "w-low", "blocked")}

    assert {i: job["ahead"] for i, job in found.items()} == {
        "p-2": 2 + 3,  # p-high and w-high; w-1, p-1, w-2
        "w-3": 2 + 4,
        "w-2": 2 + 2,
        "p-high": 0,
        "w-low": 2 + 5,
        "blocked": 0,
    }
    assert {i: job["ahead_in"] for i, job in found.items() if job["ahead_in"] != "queue"} == {
        "blocked": "lane"
    }
    assert re.search(r"^ahead +6 may run before it$", cli.ok("job", "w-3"), re.MULTILINE)
    order = [job.id for job in claim(app)]
    assert order == ["p-high", "w-high", "w-1", "p-1", "w-2", "p-2", "w-3", "w-low"]


def test_in_a_fair_queue_only_jobs_of_the_same_lane_count_as_ahead(
    cli: CommandLine, app: App
) -> None:
    task = app.task(queue="mail", caps=[Cap(99)])(send)
    app.queue("mail", fair="tenant")
    app.apply_settings()
    enqueue(task, "a-1", "a-2", "a-3", tenant="a")
    enqueue(task, "b-1", tenant="b")

    assert re.search(r"^ahead +2 in its lane$", cli.ok("job", "a-3"), re.MULTILINE)
    assert cli.json("job", "b-1")["ahead"] == 0


def test_the_number_of_jobs_ahead_is_a_lower_bound_if_many_jobs_wait(
    cli: CommandLine, app: App, task: Task[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rq_core.protocol.reads.scope_reads.AHEAD_MAX", 3)
    for n in range(5):
        enqueue(task, f"{n}", tenant=f"t{n}")

    assert re.search(r"^ahead +at least 3 may run", cli.ok("job", "4"), re.MULTILINE)
    assert cli.json("job", "2")["ahead_at_least"] is False


def test_the_job_command_searches_only_the_first_entries_of_a_long_list(
    cli: CommandLine, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks the limit of the search. While Redis searches a list, it serves no other client."""
    monkeypatch.setattr("rq_core.protocol.reads.scope_reads.PLACE_MAX", 3)
    plain = app.task(queue="mail", name="plain")(send)
    app.apply_settings()
    for n in range(5):
        plain.with_options(id=f"p-{n}").enqueue("a", "")

    found = [cli.json("job", f"p-{n}") for n in range(5)]

    assert [(each["ahead"], each["ahead_at_least"]) for each in found] == [
        (0, False), (1, False), (2, False), (3, True), (3, True)
    ]  # fmt: skip


def test_the_caps_and_job_commands_print_the_same_numbers_with_small_and_with_large_reads(
    cli: CommandLine, app: App, task: Task[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in "abcdef":
        enqueue(task, *(f"{tenant}-{n}" for n in range(4)), tenant=tenant)
    claim(app)

    def numbers() -> list[Any]:
        limits = [
            {name: each[name] for name in ("scope", "holders", "waiting", "partial")}
            for each in cli.json("caps", "mail")
        ]
        jobs = [cli.json("job", f"{tenant}-3") for tenant in "af"]
        return [limits, *((job["ahead"], job["waits_for"]) for job in jobs)]

    expected = numbers()
    for name in ("RANGES_PAGE", "MEMBERS_PAGE", "SCOPES_PAGE"):
        monkeypatch.setattr(f"rq_core.protocol.reads.ranges.{name}", 1)

    assert numbers() == expected
    assert len(expected[0]) == 2 + 6
    assert sum(each["waiting"] for each in expected[0][2:]) > 0


def test_the_job_command_names_five_of_many_jobs_that_hold_a_full_scope_and_counts_the_rest(
    cli: CommandLine, app: App, task: Task[[str, str], None]
) -> None:
    for n in range(11):
        enqueue(task, f"j-{n:02}", tenant=f"t{n}")
    assert len(claim(app, 20)) == 10

    printed = cli.ok("job", "j-10")

    assert "10, held by 10" in printed
    assert printed.count("held by") == 1 + 5
    assert "and 5 more" in printed


def test_the_job_command_shows_when_an_exhausted_rate_will_admit_the_job(
    cli: CommandLine, app: App
) -> None:
    task = app.task(queue="mail", caps=[Rate(1, per_seconds=3600)])(send)
    app.apply_settings()
    for job_id in ("one", "two"):
        task.with_options(id=job_id).enqueue("a")
    claim(app)

    printed = cli.ok("job", "two")

    assert re.search(r"^waits for +task@3600s=send$", printed, re.MULTILINE)
    assert "1/3600s" in printed
    assert "in 59 min" in printed or "in 1 h" in printed


def test_the_job_command_shows_the_cost_of_a_job(cli: CommandLine, app: App) -> None:
    def ask(tenant: str, tokens: int = 1) -> None: ...

    rate = Rate(9_000, per_seconds=60, per="tenant", name="tenant", cost="tokens", burst=9_000)
    task = app.task(queue="mail", caps=[rate])(ask)
    app.apply_settings()
    task.with_options(id="one").enqueue("a", tokens=2_500)

    assert re.search(r"^cost +2,500 tokens$", cli.ok("job", "one"), re.MULTILINE)
    cli.ok("enqueue", "mail", "send", "--id", "two")
    assert not re.search(r"^cost ", cli.ok("job", "two"), re.MULTILINE)


def test_the_job_command_says_that_a_job_waits_for_a_full_or_paused_queue(
    cli: CommandLine, app: App
) -> None:
    cli.ok("enqueue", "mail", "send", "--id", "one")
    cli.ok("enqueue", "mail", "send", "--id", "two")
    assert re.findall(r"^waits for +(.*)$", cli.ok("job", "two"), re.MULTILINE) == [
        "a worker: none runs for mail"
    ]
    cli.ok("cap", "mail", "queue", "1")
    assert [c.id for c in claim(app)] == ["one"]

    found = cli.json("job", "two")
    assert (found["waits_for"], found["limit"], found["holders"]) == ("queue", "1", 1)
    assert [h["id"] for h in found["held_by"]] == ["one"]
    cli.ok("pause", "mail")
    assert "the queue, which is paused" in cli.ok("job", "two")


def test_the_enqueue_command_applies_the_scopes_of_the_task(cli: CommandLine, app: App) -> None:
    app.task(
        queue="mail",
        caps=[
            Cap(1, per="tenant", on_full="discard"),
            Cap(1, per="to", on_full="reject"),
            Cap(1, per=lambda **_: "x", name="shard"),
        ],
    )(send)
    app.apply_settings()
    given = ("enqueue", "mail", "send", "--json-args")

    assert "makes its key 'shard' with a function" in cli.line(
        2, *given, '{"tenant": "a", "to": "x"}'
    )
    key = ("--key", "shard=s 1")
    cli.ok(*given, '{"tenant": "a", "to": "x"}', *key)
    (held,) = claim(app)
    assert held.lane == "2+send.tenant=a+send.to=x+shard=s%201"

    dropped = cli(*given, '{"tenant": "a", "to": "y"}', *key, "--id", "late")
    assert (dropped.exit_code, dropped.stdout) == (0, "late\n")
    assert dropped.stderr == "job late was discarded: a scope of it is full\n"
    assert "scope send.to=x is full" in cli.line(1, *given, '{"tenant": "b", "to": "x"}', *key)
    assert "--key must be NAME=VALUE" in cli.line(2, *given, "{}", "--key", "x")
