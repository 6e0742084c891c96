"""Each role at each route of the site, with each HTTP method: which requests are answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from rq_core.web import tokens
from rq_core.web.access import ByToken, Mounted
from rq_core.web.acting.actions import ACTIONS
from rq_core.web.pages import ALSO
from rq_core.web.routes import RULES
from rq_core.web.tokens import ADMIN, OPERATOR, ROLES, VIEWER, Access, Tokens
from tests.web.conftest import QUEUE, Browse, Scene

OWN = {"Sec-Fetch-Site": "same-origin"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
NEEDED = {
    "/act/job/cancel": OPERATOR,
    "/act/job/edit": OPERATOR,
    "/act/job/requeue": OPERATOR,
    "/act/job/prune": OPERATOR,
    "/act/job/copy": OPERATOR,
    "/act/queue/pause": OPERATOR,
    "/act/queue/resume": OPERATOR,
    "/act/queue/limit": ADMIN,
    "/act/bulk": OPERATOR,
    "/bulk": OPERATOR,
    "/bulk.json": OPERATOR,
    "/act/schedule/pause": OPERATOR,
    "/act/schedule/resume": OPERATOR,
    "/act/schedule/run": OPERATOR,
    "/act/schedule/release": ADMIN,
    "/act/schedule/remove": ADMIN,
}
"""The role that each address for changes needs, written here once more."""
ANYONE = {("GET", "/login"), ("POST", "/login")}


def routes_of(page: TestClient) -> set[tuple[str, str]]:
    """Return the method and the path of each route of the site, without the static files."""
    site: Any = page.app
    return {
        (method, route.path)
        for route in site.routes
        for method in getattr(route, "methods", None) or ()
        if method != "HEAD"
    }


def role_needed(method: str, path: str) -> str | None:
    """Return the lowest role that may send a request, by the tables in this file. None means that no role is needed."""
    if (method, path) in ANYONE:
        return None
    if path in NEEDED:
        return NEEDED[path]
    assert method == "GET" or path == "/logout", f"{method} {path} has no rule in this test"
    return VIEWER


def test_every_route_has_a_rule_in_the_table_and_a_role_in_this_test(
    scene: Scene, browse: Browse
) -> None:
    served = routes_of(browse())

    assert served == {(rule.method, rule.path) for rule in RULES}
    for rule in RULES:
        assert rule.role == role_needed(rule.method, rule.path), rule.path
    assert {each.path for each in ACTIONS} <= NEEDED.keys()


@pytest.mark.slow
def test_a_route_answers_only_senders_with_the_required_role(scene: Scene, browse: Browse) -> None:
    role: str | None = None
    page = browse(
        log=False, gate=Mounted(lambda _: None if role is None else Access("ann", role=role))
    )
    served = routes_of(page)
    wrong = []

    for role in (None, *ROLES, "owner"):
        for path in sorted({path for _, path in served}):
            # A method that no route serves is tried with the rights of an admin, who may do the most.
            methods = [each for each in METHODS if (each, path) in served or role == ADMIN]
            for method in methods:
                filled = re.sub(r"\{\w+\}", "x", path)
                status = page.request(method, filled, headers=OWN).status_code
                if status not in expected_statuses(role, method, path, served):
                    wrong.append((role, method, path, status))

    assert wrong == []


def expected_statuses(
    role: str | None, method: str, path: str, served: set[tuple[str, str]]
) -> set[int]:
    """Return the HTTP statuses that are right for a request.

    A form without a body gets 415 if the sender has the role, and 403 otherwise.
    """
    if (method, path) not in served:
        return {405}
    needed = role_needed(method, path)
    if needed is None:
        return {200, 303}
    if role not in ROLES or ROLES.index(role) < ROLES.index(needed):
        return {403}
    if path.removesuffix(".json") in ALSO.values():
        # The names of what is shown are missing.
        return {400}
    return {415} if method == "POST" and path in NEEDED else {200, 303}


def test_a_token_has_the_role_with_which_it_was_made(
    busy: Scene, browse: Browse, tokens_file: Path
) -> None:
    tokens_file.touch()
    page = browse(gate=ByToken(Tokens(tokens_file)))
    form = {"queue": QUEUE, "id": "ready"}
    statuses = {}

    for role in ROLES:
        token = tokens.add_token(tokens_file, f"t-{role}", role=role)
        given = {"Authorization": f"Bearer {token}"}
        answer = page.post("/act/queue/resume", data={"queue": QUEUE}, headers=given)
        limited = page.post("/act/queue/limit", data=form, headers=given)
        statuses[role] = answer.status_code, limited.status_code

    # The second form has a field too many: it is refused, but not for the role.
    assert statuses == {VIEWER: (403, 403), OPERATOR: (303, 403), ADMIN: (303, 400)}
    assert re.search(r"^t-admin admin [0-9a-f]{64}$", tokens_file.read_text(), re.MULTILINE)


def test_a_person_whose_role_was_removed_is_refused_at_the_next_action(
    busy: Scene, browse: Browse, tokens_file: Path
) -> None:
    token = tokens.add_token(tokens_file, "ann", role=OPERATOR)
    page = browse(gate=ByToken(Tokens(tokens_file)))
    page.post("/login", data={"token": token}, headers=OWN)
    press = {"data": {"queue": QUEUE}, "headers": OWN}
    assert page.post("/act/queue/pause", **press).status_code == 303

    tokens_file.write_text(tokens_file.read_text().replace("operator", "viewer"))

    assert page.post("/act/queue/resume", **press).status_code == 403
    assert busy.seed.meta("paused") == "1"
