"""The messages between a worker's event loop and handlers in processes of their own."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from rq_core.worker.execution.process_pool import _reply


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_message_that_is_longer_than_the_pipe_is_read_whole(loop: Any) -> None:
    said = {"shown": [None, [[n, "x" * 16_000] for n in range(64)]]}

    async def reads() -> Any:
        here, there = multiprocessing.Pipe()
        child: Any = SimpleNamespace(pipe=here)
        sender = threading.Thread(target=there.send_bytes, args=(json.dumps(said).encode(),))
        receiver = threading.Thread(target=there.recv_bytes)
        with here, there:
            sender.start()
            found = await _reply(child)
            sender.join()
            receiver.start()
            here.send_bytes(b"x" * 1_000_000)
            receiver.join()
        return found

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(reads()) == said
