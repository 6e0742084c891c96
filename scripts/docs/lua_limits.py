"""Counts the locals and upvalues of each script. Lua allows a function 200 locals and 60 upvalues.

    python -m scripts.docs.lua_limits

It prints how many locals and upvalues each script may still add. It fails if a script has fewer than ``LOCALS_LEFT``
locals or ``OUTSIDE_LEFT`` upvalues left in any of its functions. Such a script has no room for the next feature, and no
server loads a script beyond the limits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rq_core.scripts import script
from scripts.docs import lua_names

LOCALS_MAX: Final = 200
OUTSIDE_MAX: Final = 60
LOCALS_LEFT: Final = 30
OUTSIDE_LEFT: Final = 12

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_HIDDEN: Final = 3
"""The number of hidden locals that Lua creates for each `for` loop."""


@dataclass
class Function:
    """A Lua function, or the code outside all functions: its local variables, and the outer variables that it uses
    (upvalues)."""

    name: str
    outer: Function | None = None
    locals: int = 0
    """The highest number of local variables that exist at the same time."""
    outside: set[str] = field(default_factory=set)
    """The upvalues: outer variables that the function and its inner functions use."""
    scopes: list[list[str]] = field(default_factory=lambda: [[]])

    def declare(self, *names: str) -> None:
        self.scopes[-1].extend(names)
        self.locals = max(self.locals, sum(map(len, self.scopes)))

    def meet(self, name: str) -> bool:
        """Note that the function uses a name. Return whether it is a local variable of this function or of an outer
        one."""
        if any(name in scope for scope in self.scopes):
            return True
        found = self.outer is not None and self.outer.meet(name)
        if found:
            self.outside.add(name)
        return found


def functions(code: str) -> list[Function]:
    """Return the functions of a Lua text. The first one is the code outside all functions.

    The parser knows only as much Lua as the scripts use.
    """
    return _Reader(lua_names.tokens(code)).read()


class _Reader:
    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0
        self._here = Function("")
        self._found = [self._here]

    def read(self) -> list[Function]:
        self._block()
        assert self._at == len(self._words), self._words[self._at - 9 : self._at + 3]
        return self._found

    def _next(self) -> str:
        self._at += 1
        return self._words[self._at - 1]

    def _peek(self, ahead: int = 0) -> str:
        at = self._at + ahead
        return self._words[at] if at < len(self._words) else ""

    def _inside(self, work: Callable[[], None]) -> None:
        self._here.scopes.append([])
        work()
        self._here.scopes.pop()

    def _block(self) -> None:
        """Read statements up to the word that ends the block (``end``, ``else`` …)."""
        while self._peek() not in ("", "end", "else", "elseif", "until"):
            self._statement()

    def _statement(self) -> None:
        word = self._peek()
        if word == "local":
            self._local()
        elif word == "for":
            self._for()
        elif word == "repeat":
            self._next()
            self._inside(self._repeat)
        elif word == "if":
            self._if()
        elif word in ("do", "while"):
            self._expression("do")
            self._next()
            self._inside(self._block)
            self._next()
        elif word == "function":
            self._function(named=self._peek(1) != "(")
        else:
            self._next_mention()

    def _repeat(self) -> None:
        self._block()
        self._next()

    def _if(self) -> None:
        while self._peek() != "end":
            if self._next() != "else":
                self._expression("then")
                self._next()
            self._inside(self._block)
        self._next()

    def _for(self) -> None:
        self._next()
        names = self._names()
        self._next()
        self._expression("do")
        self._next()

        def body() -> None:
            self._here.declare(*["(for)"] * _HIDDEN, *names)
            self._inside(self._block)

        self._inside(body)
        self._next()

    def _local(self) -> None:
        self._next()
        if self._peek() == "function":
            self._here.declare(self._peek(1))
            self._function(named=True)
            return
        names = self._names()
        if self._peek() == "=":
            self._next()
            self._values()
        self._here.declare(*names)

    def _values(self) -> None:
        """Read the expressions after ``local … =``, up to the word that begins the next statement."""
        depth = 0
        is_complete = False
        while word := self._peek():
            if depth == 0 and is_complete and _begins_anew(word):
                return
            depth += (word in "([{") - (word in ")]}")
            is_complete = word in ")]}" or word == "function" or _ends_a_value(word)
            self._next_mention()

    def _expression(self, upto: str) -> None:
        while self._peek() != upto:
            self._next_mention()

    def _names(self) -> list[str]:
        names = [self._next()]
        while self._peek() == ",":
            self._next()
            names.append(self._next())
        return names

    def _next_mention(self) -> None:
        """Read one word, or a whole function, and note the use of a name."""
        if self._peek() == "function":
            self._function(named=False)
            return
        before = self._words[self._at - 1] if self._at else ""
        word = self._next()
        is_key = before in ("{", ",") and self._peek() == "=" and self._in_braces()
        if _NAME.fullmatch(word) and before not in (".", ":") and not is_key:
            self._here.meet(word)

    def _in_braces(self) -> bool:
        """Return whether the previous word is inside the braces of a table constructor."""
        depth = 0
        for word in reversed(self._words[: self._at - 1]):
            if word in ("}", ")"):
                depth += 1
            elif word in ("{", "("):
                if depth == 0:
                    return word == "{"
                depth -= 1
            elif depth == 0 and word in ("end", "then", "do", "local", "return"):
                return False
        return False

    def _function(self, *, named: bool) -> None:
        self._next()
        name = self._next() if named else "(no name)"
        if named:
            self._here.meet(name)
        inner = Function(name, self._here)
        self._found.append(inner)
        self._next()
        parameters = self._names() if self._peek() != ")" else []
        self._next()
        self._here = inner
        inner.declare(*parameters)
        self._block()
        self._next()
        assert inner.outer is not None
        self._here = inner.outer


def _ends_a_value(word: str) -> bool:
    """Return whether an expression may end with this word."""
    is_word = _NAME.fullmatch(word) is not None and word not in ("and", "or", "not")
    return is_word or word[0] in "'0123456789"


def _begins_anew(word: str) -> bool:
    """Return whether this word, after a complete expression, begins a new statement."""
    return _NAME.fullmatch(word) is not None and word not in ("and", "or", "not")


@dataclass(frozen=True)
class Left:
    """How many local variables and upvalues a script may still add, and the functions that limit them."""

    locals: int
    in_function: str
    outside: int
    of_function: str

    @property
    def is_enough(self) -> bool:
        """Return whether enough locals and upvalues are left for the next feature."""
        return self.locals >= LOCALS_LEFT and self.outside >= OUTSIDE_LEFT


def left(name: str) -> Left:
    """Return how many local variables and upvalues a script may still add.

    FCALL and EVALSHA run the same functions, so the numbers are the same for both.
    """
    first, *others = functions(script.function(name).text.partition("\n")[2])
    fullest = max(first, *others, key=lambda each: each.locals)
    widest = max(others, key=lambda each: len(each.outside))
    return Left(
        LOCALS_MAX - fullest.locals, fullest.name or "the text around all functions",
        OUTSIDE_MAX - len(widest.outside), widest.name,
    )  # fmt: skip


def main() -> int:
    """Print how many locals and upvalues each script may still add. Return the exit status."""
    full = []
    for name in script.names():
        found = left(name)
        print(
            f"{name:10} {found.locals:4} names left ({found.in_function}),"
            f" {found.outside:3} from outside ({found.of_function})"
        )
        if not found.is_enough:
            full.append(name)
    if full:
        sys.stderr.write(
            f"lua_limits: {', '.join(full)}: fewer than {LOCALS_LEFT} names, or {OUTSIDE_LEFT} from outside, are left:"
            " let the rooms give away fewer names, or split a room\n"
        )
    return 1 if full else 0


if __name__ == "__main__":
    sys.exit(main())
