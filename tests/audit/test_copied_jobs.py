"""Copies of jobs, and replays of dead jobs. Under one replay name, each job is copied once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from rq_core import (
    App,
    AuditNotConfigured,
    Cap,
    Filter,
    InvalidOption,
    LogBehind,
    NotCopied,
    Unique,
)
from rq_core.app.many import copying
from rq_core.app.many.copying import wait_for_log
from rq_core.cli.root import root
from rq_core.errors import InvalidName
from rq_core.model import plugins
from rq_core.protocol.calls import claims
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import Database
from tests.kit import auditlog
from tests.kit.command import command
from tests.kit.mirroring import mirroring

TIMED_OUT = Filter(queue="mail", error="TimeoutError")


@pytest.fixture
def app(
    valkey_url: str, audit_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> Iterator[App]:
    """Yield an app whose replays read pages of 5 jobs."""
    monkeypatch.setattr(copying, "PAGE", 5)
    with App(valkey_url, audit_url, audit_payload="full") as made:

        @made.task(queue="mail")
        def send(n: int, provider: str = "a") -> None: ...

        yield made


@contextmanager
def mirrored(app: App) -> Iterator[None]:
    assert app.audit_url is not None
    with mirroring(app.redis_url, app.audit_url):
        yield


def enqueue(app: App, count: int, **options: Any) -> list[str]:
    task = app.tasks["send"].with_options(**options)
    return list(app.enqueue_many(task.job(n) for n in range(count)).ids)


def run(app: App, *, error: str | None = None) -> list[str]:
    """Claim all ready jobs, and return their ids. The jobs die of ``error`` if it is given. Otherwise they succeed."""
    client, ended = app.client, []
    while held := client.run(claims.claim("mail", "w-1", 50)).jobs:
        ended += [claim.id for claim in held]
        if error is None:
            client.run(claims.complete("mail", "w-1", [(c.id, c.fence) for c in held]))
        else:
            said = json.dumps({"type": error, "message": "x"})
            records = [(c.id, c.fence, "final", 0, "gave_up", said) for c in held]
            client.run(claims.fail("mail", "w-1", records))
    return ended


def ready(app: App) -> list[str]:
    found = app.client.run(app.client.calls.reads.snapshot("mail"))
    return list(found["ready:2"])


def test_a_repeated_replay_copies_each_job_once(app: App) -> None:
    with mirrored(app):
        died = enqueue(app, 12)
        run(app, error="TimeoutError")
        enqueue(app, 2)
        run(app, error="KeyError")
        enqueue(app, 2)
        run(app)

        preview = app.replay(TIMED_OUT, name="n1", dry_run=True)
        first = app.replay(TIMED_OUT, name="n1")
        second = app.replay(TIMED_OUT, name="n1")

        assert (preview.matched, preview.copied, preview.outcomes) == (12, 12, {"copied": 12})
        assert (first.copied, second.copied) == (12, 0)
        assert second.outcomes == {"copied before": 12}
        assert sorted(ready(app)) == sorted(f"{job_id}.rn1" for job_id in died)
        # Also if the copies have ended and left Redis.
        assert len(run(app)) == 12
        assert app.replay(TIMED_OUT, name="n1").outcomes == {"copied before": 12}
        assert ready(app) == []


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_a_replay_that_was_stopped_after_any_page_continues_without_a_second_copy(
    app: App, database: Database, kills: int
) -> None:
    with mirrored(app):
        died = enqueue(app, 12)
        run(app, error="TimeoutError")
        for _ in range(kills):
            pages = iter(range(1))

            def stop(_matched: int, _copied: int, pages: Iterator[int] = pages) -> None:
                if next(pages, None) is None:
                    raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                app.replay(TIMED_OUT, progress=stop)
            run(app)

        made = app.replay(TIMED_OUT)
        run(app)

        # A replay waits until the log has all events.
        assert app.replay(TIMED_OUT, dry_run=True).outcomes == {"copied before": 12}
        asked = "SELECT COUNT(*) AS n FROM job_event WHERE job_id = :id AND type = 'enqueued'"
        for job_id in died:
            copy = copying.copy_id(job_id, made.name)
            assert auditlog.one(database, asked, id=copy)["n"] == 1


@pytest.mark.slow
def test_a_repeated_replay_after_a_kill_copies_no_job_twice(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks kills after 1, 3, 5, … round trips. Some kills come after Redis has made copies."""
    transport = app.client._transport
    exchange, left = transport.exchange, iter(())

    def limited(*step: Any) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return exchange(*step)

    with mirrored(app):
        died = enqueue(app, 12)
        run(app, error="TimeoutError")
        kills, made = 0, None
        while made is None:
            # The next replay comes two round trips further.
            left = iter(range(1 + 2 * kills))
            with monkeypatch.context() as killed:
                killed.setattr(transport, "exchange", limited)
                try:
                    made = app.replay(TIMED_OUT)
                except KeyboardInterrupt:
                    kills += 1
            if kills % 2:
                run(app)
        run(app)

        assert kills > 3
        assert app.replay(TIMED_OUT, dry_run=True).outcomes == {"copied before": 12}
        asked = "SELECT COUNT(*) AS n FROM job_event WHERE job_id LIKE '%.r%' AND type = 'enqueued'"
        assert auditlog.one(database, asked)["n"] == len(died)
        for job_id in died:
            copy = copying.copy_id(job_id, made.name)
            asked = "SELECT COUNT(*) AS n FROM job_event WHERE job_id = :id AND type = 'enqueued'"
            assert auditlog.one(database, asked, id=copy)["n"] == 1


def test_a_replay_leaves_out_jobs_that_are_no_longer_dead(app: App) -> None:
    with mirrored(app):
        died = enqueue(app, 3)
        run(app, error="TimeoutError")
        app.requeue_where(TIMED_OUT, limit=1)
        made = app.replay(TIMED_OUT)

        assert made.copied == 2
        assert sorted(ready(app))[0:1] != []
        assert app.prune_where(TIMED_OUT).changed == 2
        again = app.replay(TIMED_OUT, args={"provider": "b"}, limit=1)

        assert again.copied == 1
        assert again.name != made.name
        (copy,) = [job_id for job_id in ready(app) if job_id.endswith(f".r{again.name}")]
        found = app.client.run(app.client.calls.reads.job(copy))
        assert found is not None
        assert '"provider":"b"' in str(found.spec)
        assert copy.partition(".")[0] in died


def test_a_replay_filters_by_time_of_death_and_by_headers_and_arguments(app: App) -> None:
    now = datetime.now(UTC)
    with mirrored(app):
        enqueue(app, 4, headers={"tenant": "acme"})
        enqueue(app, 4)
        run(app, error="TimeoutError")

        def count(**terms: Any) -> int:
            return app.replay(Filter(queue="mail", **terms), dry_run=True).copied

        assert count(between=(now - timedelta(hours=1), None)) == 8
        assert count(between=(None, now - timedelta(hours=1))) == 0
        assert count(headers={"tenant": "acme"}) == 4
        assert count(headers={"tenant": "acme"}, args={"n": 3}) == 1
        assert count(task="send") == 8
        assert count(task="other") == 0


def test_a_replay_counts_the_jobs_that_cannot_be_copied_by_reason(
    app: App, valkey_url: str
) -> None:
    with mirrored(app):
        with App(valkey_url) as digests:
            made = digests.job("mail", "send", {"n": 1}, id="without-arguments")
            digests.enqueue_many([made])
        enqueue(app, 1, id="x" * 127)
        enqueue(app, 1, id="wrong")
        run(app, error="TimeoutError")
        client = app.client
        client.run(client.calls.admin.prune("mail", ["without-arguments"]))

        made_of = app.replay(TIMED_OUT, args={"n": "three"})

        assert made_of.outcomes == {
            "arguments not kept": 1, "id too long": 1, "arguments not valid": 1,
        }  # fmt: skip
        assert made_of.copied == 0


def test_a_replay_counts_jobs_that_this_app_cannot_copy(app: App, valkey_url: str) -> None:
    app.task(queue="mail", name="keyed", caps=[Cap(1, per=lambda n, **_: str(n), name="by-n")])(
        lambda n: None
    )
    app.apply_settings()
    with mirrored(app), App(valkey_url, app.audit_url, max_payload=50) as other:
        app.enqueue("mail", "keyed", {"n": 1})
        enqueue(app, 2)
        run(app, error="TimeoutError")

        made = other.replay(TIMED_OUT, dry_run=True)
        large = other.replay(TIMED_OUT, args={"provider": "x" * 50}, dry_run=True)

        assert made.outcomes == {"copied": 2, "needs the task's code": 1}
        assert large.outcomes["too large"] >= 2
        assert app.replay(TIMED_OUT, dry_run=True).outcomes == {"copied": 3}


def test_the_command_leaves_out_jobs_whose_arguments_exceed_its_max_payload(app: App) -> None:
    with mirrored(app):
        enqueue(app, 2)
        app.enqueue("mail", "send", {"n": 2, "provider": "x" * 100})
        run(app, error="TimeoutError")
        words = ["replay", "--queue", "mail", "--error", "TimeoutError", "--redis", app.redis_url]
        words += ["--audit", str(app.audit_url), "--json"]

        small = command(*words, "--max-payload", "50", "--yes", "2")
        usual = command(*words, "--dry-run")
        none = command(*words, "--max-payload", "1", "--dry-run")

        assert json.loads(small.stdout)["outcomes"] == {"copied": 2, "too large": 1}
        assert json.loads(usual.stdout)["outcomes"] == {"copied": 1, "copied before": 2}
        assert none.exit_code == 2
        assert "--max-payload" in none.stderr


def test_a_refused_copy_does_not_use_up_the_limit_of_a_replay(app: App) -> None:
    task = app.task(queue="mail", name="once", unique=Unique(per="n"))(lambda n: None)
    with mirrored(app):
        for n in range(3):
            app.enqueue_many([task.job(n=n)])
            run(app, error="TimeoutError")
        # The jobs with these names died last, so they are tried first.
        app.enqueue_many([task.job(n=1), task.job(n=2)])

        made = app.replay(TIMED_OUT, limit=1)

        assert made.outcomes == {"copied": 1, "refused": 2}


def test_a_copied_job_has_its_arguments_in_the_log_only_if_the_original_job_has(
    app: App, valkey_url: str, database: Database
) -> None:
    with mirrored(app), App(valkey_url, app.audit_url) as digests:
        (kept,) = enqueue(app, 1)
        (unkept,) = digests.enqueue_many([digests.job("mail", "send", {"n": 1})]).ids
        run(app, error="TimeoutError")

        copies = [digests.copy(job_id, queue="mail", name="n").id for job_id in (kept, unkept)]
        run(app, error="TimeoutError")
        app.prune_where(TIMED_OUT)

        assert digests.copy(copies[0], queue="mail", name="m").id == f"{kept}.rn.rm"
        with pytest.raises(NotCopied, match=r"arguments not kept: .* Enqueue it again"):
            digests.copy(copies[1], queue="mail", name="m")


def test_a_job_is_copied_from_redis_or_from_the_log(app: App) -> None:
    with mirrored(app):
        (alive, dead, ended) = enqueue(app, 3, headers={"tenant": "acme"})
        handle = app.copy(alive, args={"n": 9})

        assert handle.id.startswith(f"{alive}.r")
        found = app.client.run(app.client.calls.reads.job(handle.id))
        assert found is not None
        assert '{"headers":{"tenant":"acme"},' in str(found.spec)
        assert '"n":9' in str(found.spec)
        assert app.copy(alive, args={"n": 9}).duplicate
        run(app)
        with pytest.raises(NotCopied, match="copied before"):
            app.copy(alive, args={"n": 9})
        assert app.copy(ended, queue="mail", name="once").id == f"{ended}.ronce"
        assert asyncio.run(app.copy_async(dead)).queue == "mail"
        assert asyncio.run(app.replay_async(TIMED_OUT)).matched == 0
        with pytest.raises(
            NotCopied, match=r"^job nobody was not copied: neither a queue nor the audit log has it"
        ):
            app.copy("nobody")


def test_the_log_says_who_enqueued_a_copy_and_why(app: App, database: Database) -> None:
    with mirrored(app):
        (first, second) = enqueue(app, 2)
        run(app, error="TimeoutError")
        made = app.replay(TIMED_OUT, name="n", reason="the provider is back", by="ann", limit=1)
        copy = app.copy(first, name="once", reason="only this one", by="bob")
        wait_for_log(app.client, reader := plugins.copies_opener()(database.url), "mail")
        reader.close()

    asked = "SELECT worker, detail FROM job_event WHERE job_id = :id AND type = 'enqueued'"
    for job_id, by, why in (
        (f"{second}.r{made.name}", "ann", "the provider is back"), (copy.id, "bob", "only this one"),
    ):  # fmt: skip
        row = auditlog.one(database, asked, id=job_id)
        assert (row["worker"], json.loads(row["detail"])["why"]) == (by, why)
    assert verify(database).violations == []
    with pytest.raises(InvalidName):
        app.copy(first, by="a b")


def test_a_replay_refuses_an_outdated_log_and_unsupported_filter_terms(
    app: App, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidOption, match="a replay asks for"):
        app.replay(Filter(queue="mail", priority="low"))
    with pytest.raises(InvalidOption, match="1 to 12 characters"):
        app.replay(TIMED_OUT, name="a b")
    with App(valkey_url) as without, pytest.raises(AuditNotConfigured):
        without.replay(TIMED_OUT)
    with mirrored(app):
        enqueue(app, 1)
        run(app, error="TimeoutError")
        app.replay(TIMED_OUT, dry_run=True)
    enqueue(app, 1)
    monkeypatch.setattr(copying, "LOG_WAIT_S", 0.1)
    with pytest.raises(LogBehind):
        app.replay(TIMED_OUT)


def test_the_command_replay_copies_only_the_confirmed_number_of_jobs(
    app: App,
) -> None:
    def cli(*words: str) -> Any:
        environment = {"RQ_CORE_REDIS_URL": app.redis_url, "RQ_CORE_AUDIT_URL": app.audit_url}
        return CliRunner().invoke(root, ["replay", *words], env=environment)

    which = ("--queue", "mail", "--error", "TimeoutError")
    with mirrored(app):
        enqueue(app, 3)
        run(app, error="TimeoutError")

        assert cli(*which, "--dry-run", "--name", "n").stdout == "3 jobs to copy, as ID.rn\n"
        refused = cli(*which, "--yes", "2", "--name", "n")
        assert (refused.exit_code, "3 jobs would be copied, not 2" in refused.stderr) == (1, True)
        assert cli(*which, "--yes", "3", "--name", "n").stdout == "3 jobs copied, as ID.rn\n"
        assert cli(*which, "--yes", "3", "--name", "n").stdout == (
            "0 jobs copied, as ID.rn; left out: 3 copied before\n"
        )
        assert json.loads(cli(*which, "--dry-run", "--json").stdout)["copied"] == 3
    assert cli(*which).exit_code == 2
    assert cli(*which, "--dry-run", "--yes", "1").exit_code == 2
    assert cli(*which, "--dry-run", "--json-args", "3").exit_code == 2
    assert cli("--queue", "mail", "--dry-run").exit_code == 2
