"""A client that receives the messages about ended jobs of a queue."""

from __future__ import annotations

from typing import Any

from tests.kit.seed import Seed

MARK = "-"
"""A message that the listener publishes itself. When it arrives, all earlier messages have arrived, too."""


class Listener:
    """A connection that receives the messages of one queue."""

    def __init__(self, seed: Seed) -> None:
        self._control = seed.control
        self._heard: Any = seed.control.pubsub()  # type: ignore[no-untyped-call]

    def listen(self, seed: Seed) -> None:
        """Receive the messages of this queue from now on, and of no other queue."""
        seed.client.run(seed.calls.endings.listen(seed.queue))
        if self._heard.subscribed:
            self._heard.sunsubscribe()
        self._channel = seed.keys.channel
        self._heard.ssubscribe(self._channel)
        self.told()

    def told(self) -> list[str]:
        """Return the ids of ended jobs that were received since the last call, in order."""
        self._control.execute_command("SPUBLISH", self._channel, MARK)  # type: ignore[no-untyped-call]
        found: list[str] = []
        while True:
            message = self._heard.get_message(timeout=10)
            assert message is not None, "its own message has not come"
            if message["type"] != "smessage":
                continue
            if message["data"] == MARK:
                return found
            found += message["data"].split(" ")

    def close(self) -> None:
        self._heard.close()
