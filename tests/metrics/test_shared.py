"""Several viewers share one read of the queues in Redis. If the read fails, they share its error."""

import threading
import time

import pytest

from rq_core.connections.client import Client
from rq_core.errors import ServerUnavailable
from rq_core.metrics.shared import Shared, SharedOverview
from rq_core.protocol.engine.plan import Patience
from tests.kit.seed import Seed
from tests.kit.servers import free_port
from tests.kit.transports import LossyTransport


def test_fifty_viewers_of_the_web_page_cause_as_many_redis_calls_as_one_viewer(
    valkey_url: str,
) -> None:
    transport, clock = LossyTransport(valkey_url), [0.0]
    with Seed(valkey_url, real_clock=True) as seed:
        seed.enqueue("a")
    with Client(valkey_url, transport=transport) as client:
        shared = SharedOverview(client, clock=lambda: clock[0])
        viewers = [threading.Thread(target=shared.get) for _ in range(50)]
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join(10)
        for_all = len(transport.sent)
        clock[0] = 1.0
        shared.get()

    assert (for_all, len(transport.sent)) == (4, 8)


def test_all_viewers_get_the_same_error_during_an_outage_of_redis() -> None:
    asked: list[float] = []

    def clock() -> float:
        asked.append(0.0)
        return 0.0

    url = f"redis://127.0.0.1:{free_port()}/0"
    with Client(url, patience=Patience(unsent=0.0)) as client:
        shared = SharedOverview(client, clock=clock)
        with pytest.raises(ServerUnavailable) as first:
            shared.get()
        with pytest.raises(ServerUnavailable) as second:
            shared.get()

    assert first.value is second.value


def test_a_viewer_that_joins_a_read_that_hangs_waits_no_longer_than_the_timeout_of_the_read() -> (
    None
):
    goes_on = threading.Event()
    shared = Shared(goes_on.wait, lambda: ServerUnavailable(url="", why="late"), within_s=1.0)
    with pytest.raises(ServerUnavailable):
        shared.get()

    began = time.monotonic()
    with pytest.raises(ServerUnavailable):
        shared.get()
    took_s = time.monotonic() - began
    goes_on.set()
    shared.close()

    assert took_s < 0.8


def test_a_read_that_failed_to_start_is_started_by_the_next_viewer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shared = Shared(lambda: 7, lambda: ServerUnavailable(url="", why="late"))

    def no_more_threads(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as machine:
        machine.setattr(threading.Thread, "start", no_more_threads)
        with pytest.raises(RuntimeError):
            shared.get()

    assert shared.get() == 7
