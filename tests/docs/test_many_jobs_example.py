"""The example that changes many jobs: it cancels, edits, requeues and copies them."""

import contextlib
from pathlib import Path

import pytest

from rq_core import testing
from rq_core.protocol.calls import claims
from sql_audit.store.connection.database import Database
from tests.docs.conftest import Load
from tests.kit.mirroring import mirroring
from tests.kit.schemas import lay_schema
from tests.kit.servers import RedisServer


def test_the_examples_of_bulk_changes_cancel_edit_requeue_and_copy_many_jobs(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, valkey: RedisServer
) -> None:
    monkeypatch.setenv("RQ_CORE_REDIS_URL", valkey.url)
    monkeypatch.setenv("RQ_CORE_AUDIT_URL", f"sqlite:///{tmp_path / 'audit.db'}")
    with contextlib.closing(Database(f"sqlite:///{tmp_path / 'audit.db'}")) as database:
        lay_schema(database)
    example = load("many_jobs")

    def enqueue() -> None:
        mails = (
            example.send.with_options(headers={"tenant": tenant}).job(f"{n}@{tenant}.example")
            for tenant in ("acme", "umbrella")
            for n in range(3)
        )
        example.app.enqueue_many(mails)

    with testing.fake(example.app) as fake:
        enqueue()
        assert 3 == example.close_account("acme").changed
        assert 3 == example.let_others_go_first().changed
        assert {"low"} == {job.priority for job in fake.enqueued("mail")}
        assert ["dead"] * 3 == [ran.outcome for ran in fake.drain()]
        assert 3 == example.requeue_after_the_outage(1).changed
        assert ["dead"] * 3 == [ran.outcome for ran in fake.drain()]

    with example.app, mirroring(valkey.url, example.app.audit_url):
        enqueue()
        client = example.app.client
        said = '{"type": "TimeoutError", "message": ""}'
        died = [
            (claim.id, claim.fence, "final", 0, "gave_up", said)
            for claim in client.run(claims.claim("mail", "w-1", 50)).jobs
        ]
        client.run(claims.fail("mail", "w-1", died))
        assert 6 == example.send_with_another_provider(1).copied
        assert {"copied before": 6} == example.send_with_another_provider(1).outcomes
        copied = client.run(claims.claim("mail", "w-1", 50)).jobs
        assert 6 == sum('"provider":"b"' in str(claim) for claim in copied)
