"""An outbox in a real Valkey, an audit database, and the mirror between them."""

from collections.abc import Callable, Iterator

import pytest

from rq_core.connections.client import Client
from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.turn import Mirror
from sql_audit.store.database import Database
from tests.kit.outbox import StreamSource, StreamWriter
from tests.kit.schemas import lay_schema
from tests.kit.servers import Engine, engines

QUEUE = "mail"


@pytest.fixture
def engine(audit_url: str) -> Engine:
    """Each engine with one of the databases: what Redis forgets does not depend on the pair."""
    return engines()[0 if audit_url.startswith("sqlite") else -1]


@pytest.fixture
def client(valkey_url: str) -> Iterator[Client]:
    with Client(valkey_url) as client:
        yield client


@pytest.fixture
def source(valkey_url: str) -> Iterator[StreamSource]:
    source = StreamSource(valkey_url)
    yield source
    source.close()


@pytest.fixture
def writer(source: StreamSource) -> StreamWriter:
    return StreamWriter(source, QUEUE)


@pytest.fixture
def database(audit_url: str) -> Iterator[Database]:
    """A migrated audit database, once per kind."""
    database = Database(audit_url)
    lay_schema(database)
    yield database
    database.close()


@pytest.fixture
def make_mirror(source: StreamSource, database: Database) -> Callable[..., Mirror]:
    def make(queue: str = QUEUE, limits: BatchLimits | None = None) -> Mirror:
        return Mirror(source, database, queue, limits=limits)

    return make


@pytest.fixture
def mirror(make_mirror: Callable[..., Mirror]) -> Mirror:
    return make_mirror()
