"""The record of a check in ``mirror_proof``, for people and metrics. Nothing else relies on it: a verifier could add a
false row."""

from __future__ import annotations

import time
from collections.abc import Mapping

from sql_audit.proof.result import LogVerdict, VerifyResult
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import mirror_proof


def record_proofs(
    database: Database, result: VerifyResult, verdicts: Mapping[str, LogVerdict] | None = None
) -> None:
    """Write down what a check of whole logs has proven.

    ``verdicts``: what SQL alone came to, where ``result`` has learned more since. What is violated
    is not recorded. Raises what SQL raises, if it does not let itself be written to.
    """
    rows = []
    for name, found in result.queues.items():
        verdict = (verdicts or {}).get(name, found.verdict)
        if found.violations or verdict is LogVerdict.VIOLATED or found.epoch is None:
            continue
        rows.append(
            {
                "queue": name, "at_ms": int(time.time() * 1000), "verdict": str(verdict),
                "epoch": found.epoch, "seq": found.number, "batch": found.batches,
                "head": found.head, "events": found.events,
            }
        )  # fmt: skip
    if not rows or result.problems:
        return
    with database.writing(wait=True) as connection:
        assert connection is not None
        connection.execute(mirror_proof.insert(), rows)
        connection.commit()
