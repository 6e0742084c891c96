"""Programs in lua/plain: the text that a client sends, and the header of each program."""

import hashlib
import re
from typing import Any, Final

import pytest

from rq_core.connections.client import Client
from rq_core.model.keys import queue_keys
from rq_core.protocol.engine.plan import ReplyError
from rq_core.protocol.engine.retried_commands import Asking
from rq_core.protocol.reads.result_reads import command
from rq_core.scripts import script
from rq_core.scripts.header import HeaderError
from rq_core.scripts.plain import BY_DIGEST, by_digest, plain_names, plain_text
from scripts.docs.lint import text_of
from tests.unit.calls.scripted import Server, plans

KEYS: Final = queue_keys("q")
NOSCRIPT: Final = ReplyError("NOSCRIPT No matching script")


def test_a_short_lua_program_has_local_names_for_its_keys_arguments_and_constants() -> None:
    text = plain_text("strike", NUMBER_MAX=7)

    assert text.splitlines()[:4] == [
        "#!lua flags=allow-oom",
        "local outbox = KEYS[1]",
        "local entries_max, bytes_max = ARGV[1], ARGV[2]",
        "local NUMBER_MAX = 7",
    ]
    assert "--[[" not in text


@pytest.mark.parametrize("given", [{}, {"NUMBER_MAX": 1, "OTHER": 2}], ids=["none", "another"])
def test_a_short_lua_program_must_get_exactly_the_constants_that_its_header_names(
    given: dict[str, int],
) -> None:
    with pytest.raises(HeaderError, match=r"strike.lua is given \[.*\], not \('NUMBER_MAX',\)"):
        plain_text("strike", **given)


@pytest.mark.parametrize("name", plain_names())
def test_the_header_of_each_short_lua_program_states_what_it_returns_and_whether_it_writes(
    name: str,
) -> None:
    """A program that only reads is run with EVAL_RO. A full server runs another program only if it has the flag
    ``allow-oom``."""
    text = text_of(name)
    header = (script.lua_directory() / "plain" / f"{name}.lua").read_text().split("]]")[0]
    writes = re.search(r"call\('(HSET|XADD|UNLINK)'|pcall\(ARGV", text) is not None

    assert "\nReturns: " in header
    assert writes == text.startswith("#!lua flags=allow-oom\n")


def test_a_lua_program_is_sent_by_its_digest_and_again_as_text_to_a_server_that_lacks_it() -> None:
    seen: list[list[Any]] = []

    def answer(sent: list[Any]) -> Any:
        seen.append(sent)
        return NOSCRIPT if sent[0] == BY_DIGEST else [[""], "", 0]

    server = Server(EVALSHA_RO=[answer], EVAL_RO=[answer])

    assert {} == server.run(plans(server).endings.look("q", ["a"]))
    short, full = seen
    assert hashlib.sha1(full[1].encode(), usedforsecurity=False).hexdigest() == short[1]
    assert short[2:] == full[2:]
    assert 0 == server.slept


def test_a_server_keeps_the_lua_programs_that_it_was_sent_as_text(valkey_url: str) -> None:
    with Client(valkey_url) as client:
        client.run(client.calls.endings.look("q", ["a"]))
        (known,) = client.run(Asking().ask([["SCRIPT", "EXISTS", by_digest(command(KEYS, []))[1]]]))

    assert [1] == known
