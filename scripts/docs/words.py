"""Checks that pages, errors, help, and the comments, messages and test names in the code use plain words.

Pages, errors and help must also use one word for each idea. docs/glossary.md lists the words that must not be used.

    python -m scripts.docs.words            exit 1 if one of these texts has one of the patterns
    python -m scripts.docs.words PATH…      only the sources and tests under these paths
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from rq_core import errors, signals
from rq_core.cli.root import root
from scripts.docs.site import ROOT

_ACTOR: Final = "name the actor: producer, worker, mirror, operator"
PATTERNS: Final = {
    r"\b(?:some|any|every)(?:body|one)\b(?! of)": _ACTOR,
    r"\bnobody\b": "name the actor: no worker, no operator …",
    r"\bwhoever\b": _ACTOR,
    r"\banew\b": "write 'again'",
    r"\bthat which\b": "write 'what', or name it",
}
"""Pattern that no text may contain → the words to write instead."""
ON_PAGES: Final = {
    r"\b(?:that|which|what|who) (?:is|are) (?:none|no \w+)\b": "write 'an invalid …'",
}
"""Further patterns that pages, errors and help texts may not contain."""
IN_SOURCES: Final = {
    r"\b(?:is|are|was|were) none\b": "write 'is missing', 'is invalid', or 'no …'",
    r"\b(?:is|are|was|were) to (?:be|have)\b": "write 'must' or 'should'",
    r"\bof wh(?:ich|om)\b": "begin a new sentence, or write 'whose'",
    r"\bso many\b": "name the number: 'N jobs', 'as many as …'",
    r"\bbesides\b": "write 'also', 'and' or 'except'",
    r"\bt(?:old|ells)\b": "name the act: logs, reports, notifies, shows, says",
    r"\bstands\b": "write 'is', 'is stored in', 'waits' or 'is written'",
}
"""Further patterns that docstrings, comments, messages and names of tests may not contain."""
FIRST_LINE: Final = re.compile(
    r"(?:What|Who|Whom|Whose|Of|Until|Since|Up to|Those|That|It|They|Such)\b"
)
"""A pattern for wrong beginnings of docstrings. A docstring must begin with a verb or a noun."""
FIRST_LINE_OF_CODE: Final = re.compile(r"(?:Whether|By|As|Also|Though|Else)\b")
"""A pattern for further wrong beginnings in docstrings of modules, classes and functions. Docstrings of attributes may
begin in this way."""

RIGHT: Final = {
    "lies.md": "written by scripts/prove/lies, which quotes kinds of lies",
    "mutants.md": "written by scripts/prove/mutants, which quotes the tests",
}
"""Pages that are not checked, each with the reason."""
GLOSSARY: Final = "docs/glossary.md"
_ENTRY: Final = re.compile(r"^\*\*(.+?)\.\*\*(.*?)(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
_RULED_OUT: Final = re.compile(r"\bNot:\s+([^.]+)\.", re.IGNORECASE)
"""A pattern for the end of an entry in the glossary, which lists the words that must not be used for the idea."""
_AT_THE_ROOT: Final = ("README.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
_TEST: Final = re.compile(r"^ *(?:async )?def (test_\w+)", re.MULTILINE)
_LUA_COMMENT: Final = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_CODE: Final = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def found_in(text: str, patterns: Mapping[str, str] = PATTERNS | ON_PAGES) -> Iterator[str]:
    """Yield each phrase in the text that matches a pattern, with the advice what to write instead. Code in the text is
    ignored."""
    prose = _CODE.sub("", text)
    for pattern, instead in patterns.items():
        for match in re.finditer(pattern, prose, re.IGNORECASE):
            yield f"{match[0]!r}: {instead}"


def synonyms(glossary: str) -> dict[str, str]:
    """Return a pattern for each word that the glossary forbids, with the advice which word to use instead."""
    return {
        rf"\b{re.escape(synonym.strip())}s?\b".replace(r"\ ", r"\s+"): f"the word is {word!r}"
        for word, meaning in _ENTRY.findall(glossary.lower())
        for ruled_out in _RULED_OUT.findall(meaning)
        for synonym in " ".join(ruled_out.split()).split(",")
    }


def texts() -> Mapping[str, str]:
    """Return place → text, for all texts that users read. The glossary's lists of forbidden words are left out."""
    docs = ROOT / "docs"
    said = {
        f"docs/{path.relative_to(docs)}": path.read_text(encoding="utf-8")
        for path in sorted(docs.rglob("*.md"))
        if str(path.relative_to(docs)) not in RIGHT
    }
    said |= {name: (ROOT / name).read_text(encoding="utf-8") for name in _AT_THE_ROOT}
    said |= {
        f"errors.{name}": inspect.getdoc(kind) or ""
        for name, kind in {**vars(errors), **vars(signals)}.items()
        if isinstance(kind, type)
    }
    said[GLOSSARY] = _RULED_OUT.sub("", said[GLOSSARY])
    return said | dict(_helps(root, "rq-core"))


def problems_in_sources(
    under: Sequence[str] = ("rq_core", "sql_audit", "scripts", "lua", "tests"),
) -> Iterator[str]:
    """Yield each wrong phrase in modules, scripts and test names: its place, and the words to use instead."""
    for start in under:
        top = ROOT / start
        paths = [top] if top.is_file() else sorted([*top.rglob("*.py"), *top.rglob("*.lua")])
        for path in paths:
            place = str(path.relative_to(ROOT))
            for line, text, first_line in prose_of(path):
                for found in found_in(text, PATTERNS | IN_SOURCES):
                    yield f"{place}:{line}: {found}"
                for pattern in first_line:
                    if begins := pattern.match(text.strip()):
                        yield f"{place}:{line}: {begins[0]!r}: begin a docstring with a verb or a noun"


def prose_of(path: Path) -> Iterator[tuple[int, str, Sequence[re.Pattern[str]]]]:
    """Yield the prose of a source file: the line, the text, and patterns with which a docstring must not begin.

    In a test module or a script, the prose is the names of tests and the docstrings, except those of attributes. In a
    Lua file it is the comments. In other modules it is docstrings, comments and messages.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".lua":
        for comment in _LUA_COMMENT.finditer(text):
            yield text.count("\n", 0, comment.start()) + 1, comment[0], ()
        return
    docstrings = _docstrings(text)
    if path.is_relative_to(ROOT / "tests") or path.is_relative_to(ROOT / "scripts"):
        for line, (docstring, patterns) in docstrings.items():
            if FIRST_LINE_OF_CODE in patterns:
                yield line, docstring, patterns
        for test in _TEST.finditer(text):
            yield text.count("\n", 0, test.start(1)) + 1, test[1].replace("_", " "), ()
    else:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                yield line, token.string, ()
            elif token.type == tokenize.STRING and " " in token.string:
                _, patterns = docstrings.get(line, ("", ()))
                yield line, token.string.lstrip("rbfu").strip("\"'"), patterns


def _docstrings(text: str) -> Mapping[int, tuple[str, Sequence[re.Pattern[str]]]]:
    """Return line → (docstring, patterns with which it must not begin), for the docstrings of a module."""
    tree = ast.parse(text)
    of_code = {
        id(node.body[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
    }
    return {
        node.value.lineno: (
            node.value.value,
            (FIRST_LINE, FIRST_LINE_OF_CODE) if id(node) in of_code else (FIRST_LINE,),
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def _helps(group: click.Group, path: str) -> Iterator[tuple[str, str]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        options = (each.help or "" for each in command.params if isinstance(each, click.Option))
        yield f"{path} {name} --help", "\n".join([command.help or "", *options])
        if isinstance(command, click.Group):
            yield from _helps(command, f"{path} {name}")


def main(under: Sequence[str] = ()) -> int:
    """Check all texts, or only the sources under these paths. Return the exit status."""
    if under:
        problems = list(problems_in_sources(under))
    else:
        glossary = synonyms((ROOT / GLOSSARY).read_text(encoding="utf-8"))
        patterns = {**PATTERNS, **ON_PAGES, **glossary}
        problems = [
            f"{place}: {found}"
            for place, text in texts().items()
            for found in found_in(text, patterns)
        ]
        problems += problems_in_sources()
        problems += [f"words.RIGHT: there is no page {name}" for name in RIGHT if not _there(name)]
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


def _there(name: str) -> bool:
    return Path(ROOT / "docs" / name).is_file()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
