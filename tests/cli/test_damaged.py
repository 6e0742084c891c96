"""Commands on a queue whose keys a client changed without the scripts.

A message names the damage and, if there is one, the command that mends it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from rq_core.connections.client import Client
from rq_core.model.job import NewJob, profile, ties_of
from tests.cli.conftest import CommandLine

META = "rqc:{mail}:meta"


@pytest.fixture
def control(valkey_url: str, cli: CommandLine) -> Iterator[redis.Redis]:
    """Return a connection to Redis, with a queue `mail` for the test to damage, and an intact queue `sms`."""
    for queue in ("mail", "sms"):
        cli.ok("enqueue", queue, "send")
    with redis.Redis.from_url(valkey_url, decode_responses=True) as made:
        yield made


def test_the_top_and_doctor_commands_report_a_queue_with_another_layout_of_keys(
    cli: CommandLine, control: redis.Redis
) -> None:
    """Checks keys of another layout, which no client can use. `doctor` does not report full agreement."""
    control.hset(META, "layout", "99")
    refused = cli.line(1, "enqueue", "mail", "send")

    causes = [each for each in cli.json("top")["causes"] if each["queue"] == "mail"]
    doctor = cli("doctor")

    assert [each["alert"] for each in causes] == ["RqCoreQueueUnreadable"]
    assert refused in causes[0]["says"]
    assert f"mail: {refused}" in doctor.stdout.splitlines()
    assert "sms: all agrees" in doctor.stdout
    assert doctor.exit_code == 1


@pytest.mark.parametrize("words", [("enqueue", "mail", "send"), ("pause", "mail")], ids=" ".join)
def test_the_doctor_command_prints_the_command_that_restores_an_invalid_epoch(
    cli: CommandLine, control: redis.Redis, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Checks that `doctor` prints no traceback of a ValueError."""
    epoch = control.hget(META, "epoch")
    control.hset(META, "epoch", "x")

    refused = cli.line(1, *words)
    causes = [each for each in cli.json("top")["causes"] if each["queue"] == "mail"]
    doctor = cli("doctor", "mail", "--audit", f"sqlite:///{tmp_path}/none.db")

    assert refused.startswith(
        "queue 'mail' is damaged: its epoch in `meta` is 'x', which is no number. `rq-core doctor"
    )
    assert [each["alert"] for each in causes] == ["RqCoreQueueUnreadable"]
    assert refused in causes[0]["says"]
    command = f"redis-cli HSET '{META}' epoch {epoch}"
    assert f"`{command}`" in doctor.stdout
    _, verb, key, *rest = command.split()
    control.execute_command(verb, key.strip("'"), *rest)
    cli.ok(*words)
    assert "mail: all agrees" in cli.ok("doctor", "mail")


def test_the_doctor_command_prints_the_command_that_begins_an_epoch_without_a_log(
    cli: CommandLine, control: redis.Redis
) -> None:
    control.hset(META, "epoch", "x")
    control.xtrim("rqc:{mail}:outbox", maxlen=0)

    assert f"`redis-cli HDEL '{META}' epoch` lets a new epoch begin" in cli("doctor", "mail").stdout


def test_the_workers_command_names_an_unreadable_queue(
    cli: CommandLine, control: redis.Redis
) -> None:
    """Checks that the command does not print an empty list. An empty list means that no worker runs."""
    control.delete("rqc:{mail}:workers")
    control.set("rqc:{mail}:workers", "x")

    table = cli("workers")
    document = cli("workers", "--json", "--queue", "mail")

    assert (table.exit_code, document.exit_code) == (1, 1)
    for each in (table, document):
        assert each.stderr.startswith(
            "rq-core: queue mail cannot be read: key rqc:{mail}:workers: WRONGTYPE"
        )
    assert table.stdout == "no worker runs in the other queues\n"
    assert document.stdout == "[]\n"


def test_an_invalid_name_in_the_list_of_queues_stops_no_worker(
    cli: CommandLine, control: redis.Redis
) -> None:
    control.sadd("rqc:queues", "a b")

    workers, doctor = cli("workers"), cli("doctor")

    assert (workers.exit_code, doctor.exit_code) == (0, 1)
    assert workers.stdout == "no worker runs\n"
    for said in (workers.stderr, doctor.stdout):
        assert (
            "1 entry that can name no queue: 'a b'; `rq-core doctor --repair` removes them" in said
        )
    assert "mail: all agrees\nsms: all agrees\n" in doctor.stdout
    cli.ok("doctor", "--repair")
    assert control.smembers("rqc:queues") == {"mail", "sms"}


@pytest.mark.parametrize(
    "words", [("queues",), ("workers",), ("doctor",), ("enqueue", "new", "send")], ids=" ".join
)
def test_commands_name_the_key_if_the_list_of_queues_has_the_wrong_type(
    cli: CommandLine, control: redis.Redis, words: tuple[str, ...]
) -> None:
    """Checks that the error names the key and the remedy, and is not Redis' WRONGTYPE alone."""
    control.delete("rqc:queues")
    control.set("rqc:queues", "x")
    expected = "key rqc:queues, the list of queues, is no set. `redis-cli RENAME rqc:queues rqc:queues.bad` moves"

    assert expected in cli.line(1, *words)
    assert expected in json.loads(cli("top", "--json").stdout)["causes"][0]["says"]
    control.rename("rqc:queues", "rqc:queues.bad")
    cli.ok("enqueue", "mail", "send")
    assert "mail" in cli.ok("queues")


@pytest.mark.parametrize(
    ("name", "command", "logged"),
    [
        ("lease_ms", "rq-core set mail lease=5", "5000"),
        ("dead_retention_ms", "rq-core set mail dead-retention=2592000", "2592000000"),
        ("backlog_max_jobs", "rq-core set mail backlog-max-jobs=1000000", "1000000"),
        ("paused", "rq-core resume mail", "0"),
    ],
)
@pytest.mark.parametrize("value", ["7", "garbage"])
def test_the_doctor_command_prints_the_command_that_restores_a_setting(
    cli: CommandLine, control: redis.Redis, name: str, command: str, logged: str, value: str
) -> None:
    """Checks that the printed command works. The command `rq-core set QUEUE lease_ms=N` would be refused, or change
    nothing."""
    cli.ok("set", "mail", "lease=5")
    control.hset(META, name, value)

    *_, says = cli("doctor", "mail").stdout.splitlines()

    assert says.endswith(f"`{command}` sets it back")
    cli.ok(*command.split()[1:])
    assert control.hget(META, name) == logged
    assert "mail: all agrees" in cli.ok("doctor", "mail")


def test_the_top_command_reports_an_outbox_of_the_wrong_type(
    cli: CommandLine, control: redis.Redis
) -> None:
    """Checks a queue to which every call fails."""
    control.delete("rqc:{mail}:outbox")
    control.set("rqc:{mail}:outbox", "x")

    causes = [each for each in cli.json("top")["causes"] if each["queue"] == "mail"]

    assert [each["alert"] for each in causes] == ["RqCoreQueueUnreadable"]
    assert "WRONGTYPE" in causes[0]["says"]
    assert "key rqc:{mail}:outbox" in causes[0]["says"]


@pytest.mark.slow
def test_the_doctor_command_finds_a_queue_that_the_list_of_queues_lacks(
    cli: CommandLine, control: redis.Redis, tmp_path: Path
) -> None:
    """Checks a queue that no table, metric or alert shows."""
    audit = f"sqlite:///{tmp_path}/audit.db"
    assert cli("audit", "run", "--once", "--audit", audit).exit_code == 0
    control.srem("rqc:queues", "mail")

    named, by_log = cli("doctor", "mail"), cli("doctor", "--audit", audit)

    for said in (named, by_log):
        assert said.exit_code == 1
        assert "mail: list: the list of queues lacks it" in said.stdout
    assert "mail: mended, all agrees" in cli.ok("doctor", "mail", "--repair")
    assert control.smembers("rqc:queues") == {"mail", "sms"}
    cli.ok("doctor", "--audit", audit)


@pytest.mark.slow
@pytest.mark.parametrize("other", ["empty", "behind"])
def test_the_doctor_command_does_not_report_agreement_with_a_log_that_it_cannot_read(
    cli: CommandLine, control: redis.Redis, tmp_path: Path, other: str
) -> None:
    """Checks the last line of the output. One database does not exist, and another lacks the newest event."""
    audit = tmp_path / "audit.db"
    cli("audit", "run", "--once", "--audit", f"sqlite:///{audit}")
    if other == "behind":
        shutil.copy(audit, tmp_path / "behind.db")
        cli.ok("enqueue", "mail", "send")
        cli("audit", "run", "--once", "--audit", f"sqlite:///{audit}")
    control.srem("rqc:queues", "mail")

    said = cli("doctor", "mail", "--repair", "--audit", f"sqlite:///{tmp_path}/{other}.db")

    assert said.exit_code == {"empty": 1, "behind": 2}[other]
    assert "mail: mended\n" in said.stdout
    assert "mail: mended, all agrees" not in said.stdout


@pytest.mark.parametrize(
    ("field", "value", "command"),
    [("paused", "1", "resume mail"), ("lease_ms", "7", "set mail lease=30")],
)
def test_the_doctor_command_names_the_key_prefix_in_the_command_that_restores_a_setting(
    cli: CommandLine, control: redis.Redis, field: str, value: str, command: str
) -> None:
    """Checks that the printed command does not change the queue of this name under the default prefix."""
    cli.ok("enqueue", "mail", "send", "--prefix", "other")
    control.hset("other:{mail}:meta", field, value)

    said = cli("doctor", "mail", "--prefix", "other").stdout

    typed = f"{command} --prefix other"
    assert f"`rq-core {typed}` sets it back" in said
    cli.ok(*typed.split())
    assert control.hget("other:{mail}:meta", field) != value


SINCE = b"ready task=send unique=send/bad seq=1 since=\xc2\xb2"


@pytest.mark.parametrize("line", [b"re\xffdy task=send since=1", b"ready x", SINCE], ids=str)
def test_an_unreadable_state_line_hides_no_other_job(
    cli: CommandLine, control: redis.Redis, client: Client, line: bytes
) -> None:
    """Checks that `unique` and each list print all readable jobs without a traceback."""
    for job_id in ("bad", "good"):
        ties = ties_of(unique="keep")
        job = NewJob(job_id, "mail", profile("send"), "{}", ties=ties, name=f"send/{job_id}")
        client.run(client.calls.enqueue.many([job]))
    control.hset("rqc:{mail}:state", "bad", line)
    damaged = line is not SINCE and b"\xff" in line

    for words in (("jobs", "mail"), ("unique", "mail"), ("caps", "mail"), ("job", "good")):
        done = cli(*words)
        assert words[0] == "caps" or "good" in done.stdout
        if words[0] in ("jobs", "unique"):
            assert (done.exit_code == 1) is damaged
            assert ("the state of job bad reads" in done.stderr) is damaged


def test_the_unique_command_says_that_its_list_is_cut_even_if_a_job_is_unreadable(
    cli: CommandLine, control: redis.Redis, client: Client
) -> None:
    """Checks the sentence about names that the list leaves out."""
    for job_id in ("a", "b"):
        ties = ties_of(unique="keep")
        job = NewJob(job_id, "mail", profile("send"), "{}", ties=ties, name=f"send/{job_id}")
        client.run(client.calls.enqueue.many([job]))
    control.hset("rqc:{mail}:state", "a", "dying task=send")

    done = cli("unique", "mail", "--limit", "1")

    assert (done.exit_code, "1 of them; --limit shows more" in done.stdout) == (1, True)
    assert "the state of job a reads 'dying task=send'" in done.stderr


def test_an_unreadable_dead_job_hides_no_other_job(
    cli: CommandLine, control: redis.Redis, kill: Callable[..., None]
) -> None:
    cli.ok("cancel", *(each["id"] for each in cli.json("jobs", "mail")))
    kill("mail", "good", "bad")
    control.hset("rqc:{mail}:state", "bad", "dying task=send")

    done = cli("dead", "mail")

    assert (done.exit_code, "good" in done.stdout) == (1, True)
    assert "the state of job bad reads 'dying task=send'" in done.stderr
    done = cli("requeue", "--queue", "mail", "--state", "dead", "--yes")
    assert (done.exit_code, done.stdout.startswith("1 job requeued, bulk ")) == (1, True)
    assert "the state of job bad reads 'dying task=send'" in done.stderr


def test_the_doctor_command_examines_the_other_queues_if_one_queue_has_an_invalid_field(
    cli: CommandLine, control: redis.Redis, sqlite_url: str
) -> None:
    assert cli("audit", "run", "--once", "--audit", sqlite_url).exit_code == 0
    control.hset(META, "trimmed", "17954789")

    done = cli("doctor", "--audit", sqlite_url)

    assert "the fact trimmed of the queue reads '17954789', and is no entry" in done.stdout
    assert "sms: all agrees" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("job", "j1", "--queue", "mail"), ("jobs", "mail"), ("dead", "mail"), ("unique", "mail"), ("caps", "mail"),
        ("schedules", "mail"), ("workers", "--queue", "mail"), ("result", "j1", "--queue", "mail"),
        ("steps", "j1", "--queue", "mail"), ("watch", "j1", "--queue", "mail"), ("metrics", "--once"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_command_that_only_reads_refuses_a_queue_with_another_layout_of_keys(
    words: tuple[str, ...], cli: CommandLine, control: redis.Redis
) -> None:
    """Checks that each command fails with the same message as an enqueue."""
    control.hset(META, "layout", "99")
    refused = cli.line(1, "enqueue", "mail", "send")

    done = cli(*words)

    assert done.exit_code == 1
    assert refused in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_on_all_queues_leaves_out_a_queue_with_another_layout_of_keys(
    cli: CommandLine, control: redis.Redis
) -> None:
    control.hset(META, "layout", "99")
    refused = cli.line(1, "enqueue", "mail", "send")

    done = cli("schedules")

    assert done.exit_code == 0
    assert done.stderr == f"rq-core: left out: {refused}\n"


def test_verify_gives_the_verdict_unknown_for_a_queue_with_another_layout_of_keys(
    cli: CommandLine, control: redis.Redis, tmp_path: Path
) -> None:
    audit = f"sqlite:///{tmp_path}/audit.db"
    cli("audit", "run", "--once", "--audit", audit)
    control.hset(META, "layout", "99")
    refused = cli.line(1, "enqueue", "mail", "send")

    done = cli("audit", "verify", "--queue", "mail", "--audit", audit)

    assert done.exit_code == 2
    assert refused in done.stdout
