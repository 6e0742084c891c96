"""Placeholders. In a declared call, a placeholder is in the place of the result of another node. The result does not
exist before the flow runs."""

from __future__ import annotations

from typing import Any, Final


class Placeholder:
    """A placeholder for the result of a node of a flow. RESULT has no ``node``: it is a placeholder for the result of
    the part before."""

    __slots__ = ("node", "said")

    def __init__(self, node: Any, said: str) -> None:
        self.node = node
        self.said = said

    def __repr__(self) -> str:
        return f"<{self.said}>"

    def __str__(self) -> str:
        """Raise TypeError: a text with the placeholder in it would be sent as it is."""
        raise TypeError(
            f"{self.said} is not known yet, so it cannot be part of a text, as in an f-string: pass it as an argument,"
            " and let the task make the text"
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same placeholder. Raises TypeError for another object."""
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
        """See __getitem__."""
        return self[0]

    def __bool__(self) -> bool:
        """Raise TypeError: the value is known only when the flow runs."""
        raise TypeError(f"{self.said} is not known yet, so it is neither true nor false here")


RESULT: Final[Any] = Placeholder(None, "the result of the part before")
"""In a call of ``chain`` or ``then``: the result of the part before it; after a group, the list of its results."""
