"""Checks whether a server's memory stays flat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rq_core.connections.client import Client


def ask(client: Client, *command: str) -> Any:
    """Send one command, and return its reply."""
    (reply,) = client.run(client.calls.delivery.ask([list(command)]))
    return reply


def info(client: Client, section: str) -> dict[str, str]:
    """Return a section of the server's INFO."""
    lines = str(ask(client, "INFO", section)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def used_memory(client: Client) -> int:
    """Return how many bytes the server uses."""
    return int(info(client, "memory")["used_memory"])


def growth(memory: Sequence[int]) -> float:
    """Return the growth of memory: the maximum of the last third, divided by the maximum of the middle third.

    The result 1 means that memory is flat.
    """
    third = max(len(memory) // 3, 1)
    return max(memory[-third:]) / max(memory[third : 2 * third])


def said(memory: Sequence[int]) -> str:
    """Return a phrase for people: the lowest and the highest memory (MiB), and its growth."""
    least, most = (found(memory) / 2**20 for found in (min, max))
    return f"memory {least:.1f} to {most:.1f} MiB, last third by middle third {growth(memory):.3f}"
