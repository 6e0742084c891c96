"""The bytes with which a mirror or relay reports to its supervisor whether it is ready."""

from __future__ import annotations

from typing import Final

READY_VARIABLE: Final = "RQ_CORE_READY_FD"
"""The environment variable with the number of a file descriptor. A mirror or relay writes READY to this descriptor when
it is ready. It writes AWAY before it exits because its database does not answer."""
READY, AWAY = b"1", b"0"
