"""The table of the web page's routes: each address, with its method and the role that it needs.

The tools for programs (``rq-core mcp``) are made from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from rq_core.web.acting.actions import ACTIONS, Action
from rq_core.web.acting.bulk import ACT_PATH
from rq_core.web.pages import ALSO, PAGES, Page
from rq_core.web.tokens import OPERATOR, VIEWER


class Rule(NamedTuple):
    """A route: an address, a method, and the role that the sender of a request needs."""

    path: str
    method: str
    role: str | None
    """The lowest role that may send the request; None if no role is needed."""
    serves: Page | Action | str
    """The page or the action that answers the request, or the name of a method of the site."""


def _of_pages() -> list[Rule]:
    rules = []
    for page in PAGES:
        for place in (page.path, *([ALSO[page.name]] if page.name in ALSO else [])):
            json_path = page.json_path if place == page.path else f"{place}.json"
            # The JSON form first: a name may have a dot.
            rules += [Rule(each, "GET", page.role, page) for each in (json_path, place)]
    return rules


RULES: Final = (
    *_of_pages(),
    *(Rule(each.path, "POST", each.role, each) for each in ACTIONS),
    Rule(ACT_PATH, "POST", OPERATOR, "change_many"),
    Rule("/login", "GET", None, "login"),
    Rule("/login", "POST", None, "login"),
    Rule("/logout", "POST", VIEWER, "logout"),
)
"""All routes except the static files, which need no role."""
TOOLS: Final[Mapping[str, Page]] = {
    rule.serves.name: rule.serves
    for rule in RULES
    if rule.method == "GET" and rule.role == VIEWER and isinstance(rule.serves, Page)
}
"""Name → page, for the pages that programs can read as tools of ``rq-core mcp``: those that a viewer may see."""
