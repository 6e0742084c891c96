"""Placeholders. A placeholder is an argument of a declared call. When the flow runs, the result of another node
replaces the placeholder."""

from __future__ import annotations

from typing import Any, Final


class Placeholder:
    """A placeholder for the result of a node of a flow. RESULT has no ``node``: in a chain, the result of the part
    before replaces it."""

    __slots__ = ("node", "said")

    def __init__(self, node: Any, said: str) -> None:
        self.node = node
        self.said = said

    def __repr__(self) -> str:
        return f"<{self.said}>"

    def __str__(self) -> str:
        """Raise TypeError. A flow could not put the result into a text that was made from the placeholder, such as an
        f-string."""
        raise TypeError(
            f"{self.said} is not known yet, so it cannot be part of a text, as in an f-string: pass it as an argument,"
            " and let the task make the text"
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        """Return whether ``other`` is the same placeholder. Raises TypeError if ``other`` is no placeholder."""
        if isinstance(other, Placeholder):
            return self is other
        raise TypeError(f"{self.said} is not known yet, so it cannot be compared here")

    __hash__ = object.__hash__

    def __getitem__(self, part: object) -> Any:
        """Raise TypeError: the calls of a flow are declared before any result is known."""
        raise TypeError(
            f"{self.said} is not known yet, so it has no parts here: pass it whole, and let the task choose. To run one"
            " job for each of its elements, write a durable task (docs/how-to/children.md)"
        )

    def __iter__(self) -> Any:
        """Raise TypeError: the calls of a flow are declared before any result is known."""
        return self[0]

    def __bool__(self) -> bool:
        """Raise TypeError: the value is known only when the flow runs."""
        raise TypeError(f"{self.said} is not known yet, so it is neither true nor false here")


RESULT: Final[Any] = Placeholder(None, "the result of the part before")
"""A placeholder for a call of ``chain`` or ``then``: the result of the part before. After a group, this is the list of
the group's results."""
