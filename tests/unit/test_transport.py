"""What goes over the transport comes back as it was."""

from __future__ import annotations

from rq_core.connections.transport import AsyncPoolTransport, PoolTransport

ODD = "a\udcff\udc80é"
"""Bytes that are not UTF-8, as they are read."""


async def test_bytes_that_are_not_utf_8_are_sent_back_unchanged(valkey_url: str) -> None:
    """Without that, a worker could say nothing of a job whose id somebody damaged, again and again."""
    commands = [["SET", "key", ODD], ["GET", "key"], ["STRLEN", "key"]]
    waiting, direct = AsyncPoolTransport(valkey_url), PoolTransport(valkey_url)

    assert await waiting.exchange(commands) == ["OK", ODD, 5]
    assert direct.exchange(commands) == ["OK", ODD, 5]

    await waiting.close()
    direct.close()
