"""Several processes with one SQLite file. No process fails at a lock, and no event is written twice.

Only one process writes at a time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.measure.once import sqlite_crowd
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.database import CHECKPOINT_PAGES, Database
from tests.kit import auditlog

FULL = 2


@pytest.mark.slow
def test_mirrors_and_readers_do_not_disturb_each_other_on_sqlite(
    valkey_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "audit.db"

    found = sqlite_crowd.run(valkey_url, path, seconds=4)

    assert found.errors == [], "no 'database is locked', no half of a batch seen"
    assert found.reads > 8
    assert all(found.batches), f"both mirrors wrote: {found.batches}"
    # What SQLite itself was told, traced in each writing process.
    assert found.begins == {"BEGIN IMMEDIATE"}
    full = {"synchronous": FULL, "wal_autocheckpoint": CHECKPOINT_PAGES, "query_only": 0}
    assert found.writers == {tuple(sorted(full.items()))}
    # Readers never checkpoint; a writer does within its COMMIT, while it holds the lock file, and
    # no two of their transactions were open at once.
    assert {(dict(r)["wal_autocheckpoint"], dict(r)["query_only"]) for r in found.readers} == {
        (0, 1)
    }
    assert found.explicit_checkpoints == 0
    assert found.overlaps == 0
    database = Database(str(path))
    assert auditlog.one(database, "SELECT COUNT(*) AS n FROM job_event")["n"] == found.events
    places = "SELECT COUNT(*) AS n FROM (SELECT DISTINCT epoch, seq, ordinal FROM job_event)"
    assert auditlog.one(database, places)["n"] == found.events
    assert verify(database).verdict is LogVerdict.HOLDS
    database.close()
