"""Runs luacheck on the texts that Redis receives: each script of ``lua/`` with its includes, keys and arguments.

    python -m scripts.docs.lint

luacheck finds shadowed, unused and undefined names. A variable of an include counts as used if any script uses it.
Debian has luacheck as lua-check. Without luacheck nothing is checked; with CI=true it must be installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from rq_core.scripts import script
from rq_core.scripts.plain import plain_names, plain_text
from rq_core.scripts.rooms import OPENING
from rq_core.scripts.source import PLAIN, read
from scripts.docs import headers

_WARNING: Final = re.compile(r"^(?P<file>.*?):(?P<line>\d+):\d+: \(\w(?P<code>\d+)\) (?P<said>.*)$")
_OF_LINE: Final = re.compile(r" on line \d+")
_QUOTED: Final = re.compile(r"'(\w+)'")
_UNUSED: Final = ("211", "231", "241")
"""The codes of luacheck for unused variables."""
_SHADOWING: Final = ("431", "432")
_OPTIONS: Final = (
    "--formatter=plain", "--codes", "--std=lua51", "--read-globals", "redis", "cjson", "KEYS", "ARGV",
    "--not-globals", "print", "require", "module", "io", "dofile", "loadfile", "setfenv", "getfenv",
    "--no-max-line-length",
)  # fmt: skip


def problems(texts: dict[str, str]) -> list[str]:
    """Return luacheck's warnings about Lua texts. ``texts`` has each text by the name of its script.

    Each warning is one line: the scripts, luacheck's words, and the line of Lua.
    """
    lines = {name: text.split("\n") for name, text in texts.items()}
    with tempfile.TemporaryDirectory() as directory:
        for name, text in texts.items():
            # The first line is Redis', not Lua's.
            (Path(directory) / f"{name}.lua").write_text(text.replace("#!lua", "--", 1))
        ran = subprocess.run(
            ["luacheck", *_OPTIONS, "--", *(f"{name}.lua" for name in texts)],  # noqa: S607 - Debian's, from PATH
            cwd=directory, capture_output=True, text=True, check=False,
        )  # fmt: skip
    found: dict[tuple[str, str, str], set[str]] = {}
    for told in ran.stdout.splitlines():
        match = _WARNING.match(told)
        if match is None:
            return [told, ran.stderr]
        name = match["file"].removesuffix(".lua")
        line = lines[name][int(match["line"]) - 1]
        if OPENING in line and match["code"] in _SHADOWING:
            continue  # what a room takes has the same names inside as outside
        said = _OF_LINE.sub("", match["said"])
        found.setdefault((match["code"], said, line), set()).add(name)
    taken = headers.shared()
    users = Counter(line for text in lines.values() for line in set(text))
    return [
        f"{', '.join(sorted(names))}: {said}: {line.strip()}"
        for (code, said, line), names in found.items()
        if code not in _UNUSED
        or (len(names) == users[line] and not taken.keys() & set(_QUOTED.findall(said)))
    ]


def text_of(name: str) -> str:
    """Return the text of a program in ``lua/plain``. Each of its constants is 1, because luacheck needs a value."""
    given = read(script.lua_directory() / PLAIN / f"{name}.lua").header.words("Given")
    return plain_text(name, **dict.fromkeys(given, 1))


def main() -> int:
    """Print luacheck's warnings. Return the exit status."""
    if shutil.which("luacheck") is None:
        sys.stderr.write("lint: luacheck is not installed (Debian: lua-check)\n")
        return 1 if os.environ.get("CI", "").lower() in {"1", "true", "yes"} else 0
    found = problems({name: script.function(name).text for name in script.names()})
    found += problems({name: text_of(name) for name in plain_names()})
    for problem in found:
        sys.stderr.write(f"lint: {problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
