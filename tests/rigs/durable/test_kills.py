"""A short run of the kills between the calls of a durable handler. ``scripts/prove/model --kills`` makes a long run."""

import pytest

from sql_audit.store.connection.database import Database
from tests.kit.schemas import lay_schema
from tests.kit.servers import RedisServer
from tests.rigs.durable.kills import run


@pytest.mark.slow
def test_killing_workers_repeats_no_saved_step_and_skips_no_step(
    valkey: RedisServer, sqlite_url: str
) -> None:
    database = Database(sqlite_url)
    lay_schema(database)

    done = run(valkey.url, database, kills=8, queues=4, seed=7)

    assert [] == done.problems
    assert done.kills >= 8
    assert done.jobs >= 4
    database.close()
