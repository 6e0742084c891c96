"""Records the result of a check in ``mirror_proof``, for people and metrics.

No proof relies on this table: a role that may verify could insert a false row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from sql_audit.proof.result import LogVerdict, VerifyResult
from sql_audit.store.connection.database import Database
from sql_audit.store.schema.tables import mirror_proof


def record_proofs(
    database: Database, result: VerifyResult, verdicts: Mapping[str, LogVerdict] | None = None
) -> None:
    """Add a row to ``mirror_proof`` for each queue whose log was checked without a violation.

    ``verdicts`` are the verdicts from SQL alone, by queue. Pass them if a comparison with Redis has changed ``result``.
    If ``result`` has problems that concern no single queue, nothing is recorded. Raise the errors of SQL if the table
    cannot be written.
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
