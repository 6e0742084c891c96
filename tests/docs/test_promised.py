"""Facts that the pages must state: how long calls take, and what failovers, suspects and rights mean for callers."""

from __future__ import annotations

import re

import pytest

from rq_core.connections import connection, transport
from rq_core.protocol.engine.plan import Patience
from tests.docs.transcript import DOCS


def section(page: str, heading: str) -> str:
    """Return the text under a heading as one line, up to the next heading of level 1 to 3."""
    text = (DOCS / page).read_text()
    found = re.search(
        rf"^(#+) {re.escape(heading)}\n(.*?)(?=^#{{1,3}} |\Z)", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, (page, heading)
    return " ".join(found[2].split())


def test_the_page_about_servers_states_how_long_a_call_waits() -> None:
    """Checks that the page has each time limit of a call, as the code has it."""
    patience = Patience()
    said = section("how-to/servers.md", "How long a call waits")

    for words in (
        f"could not be sent: no connection | {patience.unsent:g} s",
        f"({connection.CONNECT_TIMEOUT_S:g} s at most)",
        f"the server to answer again, {patience.unknown:g} s at most | `OutcomeUnknown`",
        f"gives a connection up after {transport.SOCKET_TIMEOUT_S:g} s without a reply",
        f"a worker after {transport.WORKER_SOCKET_TIMEOUT_S:g} s",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("page", "heading", "words"),
    [
        ("how-to/names.md", "Unique", "A failover, also a planned one"),
        ("how-to/names.md", "Unique", "two jobs of one name"),
        ("how-to/tasks.md", "Suspects", "runs one suspect at a time"),
        ("how-to/tasks.md", "Suspects", "costs each of the jobs beside it one loss"),
        ("how-to/audit-log.md", "How it went", "for a million claims"),
        ("reference/rights.md", "Prepare the server", "switches a queue's log on or off"),
    ],
)
def test_the_pages_state_each_surprising_limit(page: str, heading: str, words: str) -> None:
    assert words in section(page, heading)


def test_the_page_about_testing_says_how_async_tests_call_drain_async() -> None:
    page = (DOCS / "how-to/testing.md").read_text()

    assert "await `fake.drain_async()`" in page
