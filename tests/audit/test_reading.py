"""The mirror reads the next batch while SQL writes a batch. The read is repeated if SQL's cursor does not match."""

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from sql_audit.mirror.reading import BatchLimits
from sql_audit.mirror.redis_access import RawFields
from sql_audit.mirror.turn import Mirror, TurnOutcome
from sql_audit.proof.result import LogVerdict
from sql_audit.proof.verify import verify
from sql_audit.store.connection.background import BackgroundCall
from sql_audit.store.connection.database import Database
from tests.audit.conftest import QUEUE
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter, enqueue

LIMITS = BatchLimits(events=7)


class Told(StreamSource):
    """A source that records the thread and the position of each read."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[tuple[bool, str]] = []

    def read_outbox(self, queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        self.reads.append((threading.current_thread() is threading.main_thread(), start))
        return super().read_outbox(queue, start, count)


@pytest.fixture
def source(valkey_url: str) -> Iterator[Told]:
    source = Told(valkey_url)
    yield source
    source.close()


@pytest.fixture
def mirror(make_mirror: Callable[..., Mirror]) -> Mirror:
    return make_mirror(limits=LIMITS)


def backlog(writer: StreamWriter) -> None:
    for n in range(10):
        writer.life(f"{n}-a", f"{n}-b")


def test_the_mirror_reads_a_backlog_while_sql_writes(
    writer: StreamWriter, mirror: Mirror, source: Told, database: Database
) -> None:
    backlog(writer)

    auditlog.drain(mirror)

    own = [start for is_main, start in source.reads if is_main]
    ahead = [start for is_main, start in source.reads if not is_main]
    assert len(ahead) > len(own) > 0
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    auditlog.assert_chain_holds(database, QUEUE)


def test_the_mirror_reads_again_at_once_if_its_read_ahead_found_nothing(
    writer: StreamWriter, mirror: Mirror
) -> None:
    enqueue(writer, "a", "b", "c", "d", "e", "f", "g")
    assert mirror.turn().outcome is TurnOutcome.MIRRORED

    enqueue(writer, "late")

    assert mirror.turn().events == 1


def test_a_mirror_drops_a_batch_that_it_read_ahead_if_another_mirror_has_committed_it(
    writer: StreamWriter, make_mirror: Callable[..., Mirror], database: Database
) -> None:
    backlog(writer)
    one, other = make_mirror(limits=LIMITS), make_mirror(limits=LIMITS)

    for _ in range(20):
        one.turn()
        other.turn()

    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)
    auditlog.assert_chain_holds(database, QUEUE)


def test_events_that_the_mirror_read_ahead_before_redis_lost_them_are_orphaned(
    writer: StreamWriter, mirror: Mirror, source: Told, database: Database
) -> None:
    """Checks a loss of Redis after the read. SQL gets the same rows as after a loss that follows the commit."""
    writer.life("kept-a", "kept-b")
    survivor = f"{writer.epoch}-{writer.seq}"
    last = writer.log[-1][1]
    for n in range(4):
        enqueue(writer, f"gone-{n}-a", f"gone-{n}-b")
    assert mirror.turn().outcome is TurnOutcome.MIRRORED
    source.redis.delete(writer.keys("outbox"))
    source.redis.xadd(writer.keys("outbox"), last, id=survivor)
    writer.begin(writer.epoch + 1_000, "replid_changed", survivor)
    writer.life("after")

    auditlog.drain(mirror)

    result = verify(database)
    assert result.verdict is not LogVerdict.VIOLATED
    jobs = auditlog.rows(database, "SELECT job_id, state FROM job ORDER BY job_id")
    states = {row["job_id"]: row["state"] for row in jobs}
    assert {states[i] for i in ("kept-a", "kept-b", "after")} == {"succeeded"}
    assert {state for i, state in states.items() if i.startswith("gone")} <= {"lost"}
    auditlog.assert_chain_holds(database, QUEUE)


def test_the_mirror_reads_again_if_its_read_ahead_failed(
    writer: StreamWriter, mirror: Mirror, source: Told, database: Database
) -> None:
    backlog(writer)
    real = source.read_outbox

    def fails_beside(queue: str, start: str, count: int) -> Sequence[tuple[str, RawFields]]:
        found = real(queue, start, count)
        if threading.current_thread() is not threading.main_thread():
            raise ConnectionError("gone")
        return found

    source.read_outbox = fails_beside  # type: ignore[method-assign]

    auditlog.drain(mirror)

    assert False in {is_main for is_main, _ in source.reads}
    assert auditlog.told_by_sql(database, QUEUE) == auditlog.told_by_stream(writer.log)


def test_asking_for_the_result_of_a_failed_background_call_raises_its_error() -> None:
    def fail() -> None:
        raise ValueError("no")

    call = BackgroundCall(fail)
    call.wait()

    with pytest.raises(ValueError, match="no"):
        call.result()
