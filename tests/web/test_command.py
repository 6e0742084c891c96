"""`rq-core web` serves the page and makes tokens. Without tokens, it serves no other machine."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from rq_core.web.tokens import Tokens
from tests.cli.conftest import CommandLine
from tests.kit.processes import Child
from tests.kit.servers import free_port
from tests.kit.wait import wait_until
from tests.web.conftest import Scene
from tests.web.test_pages import parsed


@pytest.fixture
def cli(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    monkeypatch.delenv("RQ_CORE_WEB_TOKENS", raising=False)
    return CommandLine(scene.url)


@pytest.mark.slow
def test_the_page_is_served_until_it_is_stopped(scene: Scene, tmp_path: Path) -> None:
    scene.seed.enqueue("a")
    scene.mirror()
    port = free_port()
    command = [
        sys.executable, "-m", "rq_core.cli", "web", "--listen", f"127.0.0.1:{port}", "--redis", scene.url,
        "--audit", scene.audit_url,
    ]  # fmt: skip

    def answer(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
                return str(found.read(), "utf-8")
        except OSError:
            return ""

    with Child(command, tmp_path / "log") as process:
        wait_until(lambda: answer("/") != "", "it answers", timeout=60)
        document = json.loads(answer("/index.json"))
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        said = process.said()

    assert [each["queue"] for each in document["queues"]] == ["mail"]
    assert f"the page is at http://127.0.0.1:{port}/\n" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_the_page_works_behind_a_proxy_that_strips_its_path(scene: Scene, tmp_path: Path) -> None:
    """Checks a proxy that removes a prefix from the path, such as nginx with `proxy_pass http://…/`."""
    scene.seed.enqueue("a")
    port = free_port()
    command = [
        sys.executable, "-m", "rq_core.cli", "web", "--listen", f"127.0.0.1:{port}", "--redis", scene.url,
        "--root-path", "/ops/queues",
    ]  # fmt: skip

    def answer(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as found:
                return str(found.read(), "utf-8")
        except OSError:
            return ""

    with Child(command, tmp_path / "log") as process:
        wait_until(lambda: answer("/") != "", "it answers", timeout=60)
        shown = answer("/")
        links = {link for link in parsed(shown).links if not link.startswith("#")}
        broken = [link for link in sorted(links) if answer(link.removeprefix("/ops/queues")) == ""]
        style = answer("/static/style.css")
        process.terminate()
        process.wait(20)

    assert 'href="/ops/queues/static/style.css"' in shown
    assert style
    assert all(link.startswith("/ops/queues/") for link in links)
    assert len(links) > 5
    assert broken == []


@pytest.mark.parametrize(
    "address", ["0.0.0.0:8900", "[::]:8900", "10.0.0.1:1", "queues.example:80"]
)
def test_the_page_without_tokens_listens_only_on_this_machine(
    cli: CommandLine, address: str
) -> None:
    said = cli.line(2, "web", "--listen", address)

    assert "must be an address of this machine alone" in said
    assert "rq-core web token" in said


def test_a_missing_file_of_tokens_is_refused(cli: CommandLine, tokens_file: Path) -> None:
    assert "must be a file that can be read" in cli.line(2, "web", "--tokens", str(tokens_file))


@pytest.mark.parametrize("path", ["queues", "/queues/"])
def test_an_invalid_root_path_is_refused(cli: CommandLine, path: str) -> None:
    assert "must be like /queues" in cli.line(2, "web", "--root-path", path)


def test_a_token_is_printed_once_and_can_be_removed(cli: CommandLine, tokens_file: Path) -> None:
    given = ("--tokens", str(tokens_file))
    token = cli.ok("web", "token", "ann", *given).strip()
    other = cli.ok("web", "token", "bob", "--see-arguments", *given).strip()
    found = Tokens(tokens_file)

    assert len(token) >= 43
    assert token != other
    known, sees = found.by_token(token), found.by_token(other)
    assert known is not None
    assert known.access.name == "ann"
    assert not known.access.see_arguments
    assert sees is not None
    assert sees.access.see_arguments

    cli.ok("web", "token", "ann", "--remove", *given)

    assert found.by_token(token) is None
    assert "has no token of ann" in cli.line(1, "web", "token", "ann", "--remove", *given)


def test_a_token_needs_a_file_and_a_name(cli: CommandLine, tokens_file: Path) -> None:
    assert "give --tokens FILE" in cli.line(2, "web", "token", "ann")
    assert "is not valid" in cli.line(2, "web", "token", "a b", "--tokens", str(tokens_file))


def test_the_help_of_the_web_command_names_both_its_commands(cli: CommandLine) -> None:
    shown = cli.ok("web", "--help")

    assert "serve" in shown
    assert "token" in shown
