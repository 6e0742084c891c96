"""Bytes that a client reads from Redis are sent back unchanged."""

from __future__ import annotations

from rq_core.connections.transport import AsyncPoolTransport, PoolTransport

ODD = "a\udcff\udc80é"
"""Bytes that are not UTF-8, in the form in which the client reads them."""


async def test_bytes_that_are_not_utf_8_are_sent_back_unchanged(valkey_url: str) -> None:
    """A worker needs the exact bytes of a damaged job id to report the job's outcome."""
    commands = [["SET", "key", ODD], ["GET", "key"], ["STRLEN", "key"]]
    waiting, direct = AsyncPoolTransport(valkey_url), PoolTransport(valkey_url)

    assert await waiting.exchange(commands) == ["OK", ODD, 5]
    assert direct.exchange(commands) == ["OK", ODD, 5]

    await waiting.close()
    direct.close()
