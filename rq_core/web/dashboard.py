"""The Starlette app of the web page. Its routes are made from the table of routes.

    from rq_core.web.dashboard import dashboard

    site.mount("/queues", dashboard(app, authorize=who_may_look))

``who_may_look`` returns the rights of a request's sender.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rq_core.errors import InvalidOption, UsageError
from rq_core.web import views, words
from rq_core.web.access import (
    COOKIE,
    COOKIE_S,
    SECURITY_HEADERS,
    Authorize,
    ByToken,
    Gate,
    Guard,
    Mounted,
    access_of,
    local_path,
)
from rq_core.web.acting import bulk
from rq_core.web.acting.actions import ACTION_BY_NAME, Action, offered
from rq_core.web.acting.bulk import Seals
from rq_core.web.acting.fields import COPIED_WITH, EDITED, FIELD_MAX
from rq_core.web.acting.forms import Acted, FormRefused, Outcomes, act, act_on_many, form_pairs
from rq_core.web.graph.flow_rows import drawn
from rq_core.web.pages import PAGES, Page
from rq_core.web.reading import Answers, ask_sources, made_with
from rq_core.web.routes import RULES, Rule
from rq_core.web.search import NOT_SEARCHED, PageQuery, asked_of
from rq_core.web.sources import ActingSources, RecentAnswers
from rq_core.web.views import Facts
from rq_core.web.words import query

if TYPE_CHECKING:
    from rq_core.app.app import App

HERE: Final = Path(__file__).parent
TEMPLATES: Final = HERE / "templates"
STATIC: Final = HERE / "static"
_AGES: Final = re.compile(
    rb'(?<=data-age="ago">)[^<]*|(?<=data-age="for">)[^<]*|(?<=data-age="due">)[^<]*|(?<=name="now" content=")\d+'
)
"""Matches the parts of an HTML page that change by themselves as time passes: ages, and the present time."""
SHOWN_MAX: Final = 100
"""Maximum number of rendered versions of one page that are kept for a second. Viewers with different rights need
different versions."""


def dashboard(
    app: App,
    *,
    authorize: Authorize | None = None,
    allow_hosts: Iterable[str] = (),
) -> Starlette:
    """Return the web page of an app's queues as a Starlette app, to be mounted in a Starlette or FastAPI app.

    ``authorize`` is called with each request. It returns an :class:`rq_core.web.tokens.Access`; None: the sender may
    not see the page. ``authorize`` may be async. ``allow_hosts`` are the host names of the site.

    Raises InvalidOption if ``authorize`` is missing, because every visitor of the site would see the page.
    """
    if authorize is None:
        must = (
            "must be a function of a request that returns an Access, or None for who may not look"
        )
        raise InvalidOption.of("authorize", None, must)
    sources = ActingSources(
        app.redis_url, prefix=app.prefix, audit_url=app.audit_url, inbox_url=app.inbox_url, app=app
    )
    return build_site(sources, Mounted(authorize), allow_hosts)


def build_site(
    sources: ActingSources,
    gate: Gate,
    hosts: Iterable[str] = (),
    *,
    behind_https: bool = False,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Make the Starlette app of the web page. It closes ``sources`` when it ends.

    ``gate`` decides who may see the page. ``hosts``: the host names that requests may have. ``behind_https``: True if
    browsers reach the app through a proxy that ends TLS; the cookie is then for HTTPS only.
    """
    site = _Site(sources, gate, clock, behind_https=behind_https)
    routes: list[BaseRoute] = [
        *(Route(rule.path, site.endpoint(rule), methods=[rule.method]) for rule in RULES),
        Mount("/static", StaticFiles(directory=STATIC), name="static"),
    ]

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        sources.close()

    made = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, gate=gate, hosts=tuple(hosts))],
        lifespan=lifespan,
        exception_handlers={404: site.not_found, 500: site.broken},
    )
    made.state.sources = sources
    return made


@functools.cache
def environment() -> Environment:
    """Return the Jinja environment of the templates. It escapes all values, and an unknown name raises an error."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= words.FILTERS
    made.globals |= {
        "query": words.query,
        "job_path": words.job_path,
        "schedule_path": words.schedule_path,
        "drawn": drawn,
        "menu": _menu(),
        "actions": ACTION_BY_NAME,
        "edited": EDITED,
        "copied_with": COPIED_WITH,
        "field_max": FIELD_MAX,
    }
    made.globals["m"] = made.get_template("macros.html").module
    made.globals["f"] = made.get_template("forms.html").module
    made.globals["g"] = made.get_template("graph.html").module
    for name in made.list_templates():
        # Now, so that the first viewer does not wait for it.
        made.get_template(name)
    return made


def _menu() -> list[Page]:
    return [page for page in PAGES if "{" not in page.path]


def _base(request: Request) -> str:
    """Return the path before each address of the web page: where it is mounted, or what a proxy removes."""
    return str(request.scope.get("root_path", "")).rstrip("/")


class _Made(NamedTuple):
    """A rendered page with its ETag, or an address to which the browser is redirected."""

    body: bytes
    media_type: str
    tag: str
    leads_to: str = ""

    @classmethod
    def of(cls, body: bytes, media_type: str) -> Self:
        """Return a rendered page with its ETag. The ETag ignores ages, because a script of the page (live.js) updates
        them."""
        told = _AGES.sub(b"", body)
        return cls(body, media_type, f'W/"{hashlib.sha256(told).hexdigest()[:32]}"')

    def answer(self, request: Request) -> Response:
        """Return the HTTP answer to a request: 304 if the sender already has this version."""
        if self.leads_to:
            return RedirectResponse(self.leads_to, 303)
        headers = {"ETag": self.tag}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


class _Answers(NamedTuple):
    """The data that all sources returned for one page, and the pages rendered from it, by kind of viewer."""

    read: Answers
    shown: dict[Hashable, _Made]


class _Site:
    """Answers the HTTP requests to the web page."""

    def __init__(
        self, sources: ActingSources, gate: Gate, clock: Callable[[], float], *, behind_https: bool
    ) -> None:
        self._sources = sources
        self._recent = RecentAnswers()
        self._gate = gate
        self._clock = clock
        self._behind_https = behind_https
        self._outcomes = Outcomes()
        self._seals = Seals(secrets.token_bytes(32))
        self._templates = environment()

    def endpoint(self, rule: Rule) -> Callable[[Request], Any]:
        """Return the function that answers the requests of a route. It refuses senders who lack the route's role."""

        async def answer(request: Request) -> Response:
            access = access_of(request)
            if rule.role is not None and (access is None or not access.may(rule.role)):
                whose = "no role" if access is None else f"the role {access.role}"
                says = f"this needs the role {rule.role}, and you have {whose}"
                return self._sentence(request, says, 403)
            if isinstance(rule.serves, Page):
                return await self._page(rule.serves, request)
            if isinstance(rule.serves, Action):
                return await self._act(rule.serves, request)
            found: Response = await getattr(self, rule.serves)(request)
            return found

        return answer

    async def _act(self, action: Action, request: Request) -> Response:
        """Carry out an action, and redirect the browser to the page of the changed thing.

        If the change was not made, show a sentence instead.
        """
        access = access_of(request)
        assert access is not None  # The rule asks for a role.
        acted = await act(self._sources, action, access, request)
        self._recent.forget()
        if acted.status != 200:
            return self._sentence(request, acted.says, acted.status, back=acted.back)
        did = self._outcomes.keep(access, acted.says)
        joint = "&" if "?" in acted.back else "?"
        return RedirectResponse(f"{_base(request)}{acted.back}{joint}did={did}", 303)

    async def _page(self, page: Page, request: Request) -> Response:
        now_ms = int(self._clock() * 1000)
        given = {**request.query_params, **request.path_params}
        missing = [name for name in page.names if not given.get(name)]
        if missing:
            return self._sentence(request, f"the address must say {' and '.join(missing)}", 400)
        try:
            asked = asked_of(request.path_params, request.query_params.multi_items(), now_ms)
        except UsageError as error:
            return self._sentence(request, str(error), 400)
        access = access_of(request)
        assert access is not None  # The guard let it through.
        if asked.needs_spec and not access.see_arguments:
            # Which jobs a search finds would disclose their headers and arguments.
            return self._sentence(request, NOT_SEARCHED, 403)
        answers = await self._recent.get((page.name, asked), lambda: self._ask(page, asked, now_ms))
        # Tabs with the same address and the same rights get the same document: to make it takes longer than to send it.
        viewer = access, _base(request), request.url.path, request.url.query
        made = answers.shown.get(viewer)
        if made is None:
            facts = answers.read.facts(asked, access, now_ms)
            made = made_with(facts, lambda facts: self._made(page, request, facts))
            if len(answers.shown) < SHOWN_MAX:
                answers.shown[viewer] = made
        return made.answer(request)

    async def _ask(self, page: Page, asked: PageQuery, now_ms: int) -> _Answers:
        return _Answers(await ask_sources(self._sources, page, asked, now_ms), {})

    def _made(self, page: Page, request: Request, facts: Facts) -> _Made:
        """Render a page as HTML or JSON from its data."""
        document = page.view(facts)
        frame = views.frame(facts)
        if request.url.path.endswith(".json"):
            return _Made.of(words.json_text(frame | document).encode(), "application/json")
        if "leads_to" in document:
            return _Made(b"", "", "", _base(request) + document["leads_to"])
        html = self._render(
            request, page.template, page=page, doc=document, frame=frame, asked=facts.asked,
            acts=offered(page.name, document, facts.access),
            sealed=self._is_sealed(facts), did=self._outcomes.get(facts.access, request.query_params.get("did", "")),
        )  # fmt: skip
        return _Made.of(bytes(html.body), "text/html")

    def _render(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> Response:
        path = local_path(request.scope)
        asks = f"?{request.url.query}" if request.url.query else ""
        as_json = "/index.json" if path == "/" else f"{path}.json"
        text = self._templates.get_template(template).render(
            {"page": None, "did": "", "acts": []} | values, base=_base(request), self_url=path + asks,
            json_url=as_json + asks, login=self._gate.login, access=access_of(request), has_log=self._sources.has_log,
        )  # fmt: skip
        return Response(text.encode("utf-8", "backslashreplace"), status, media_type="text/html")

    def _sentence(self, request: Request, says: str, status: int, *, back: str = "") -> Response:
        """Return a page that shows only a sentence about an error. ``back``: the address of a page to return to, or
        empty."""
        if request.url.path.endswith(".json"):
            body = json.dumps({"error": words.word(says, 1_000)})
            return Response(body, status, media_type="application/json")
        search = request.query_params.get("q", "") if access_of(request) else ""
        return self._render(
            request, "sentence.html", status, says=says, search=search, back=back, frame=None
        )

    async def not_found(self, request: Request, _error: Exception) -> Response:
        """Answer that the page does not exist."""
        return self._sentence(request, "there is no such page", 404)

    async def broken(self, _request: Request, _error: Exception) -> Response:
        """Answer that an internal error happened. Only the server's log has its details."""
        says = "this page has a bug: the log of its server says more\n"
        # It is answered outside of the guard.
        return PlainTextResponse(says, 500, headers=SECURITY_HEADERS)

    # Changes of many jobs.

    def _is_sealed(self, facts: Facts) -> bool:
        """Return whether the address proves, by an HMAC of this server, that the operator has confirmed the change of
        many jobs."""
        found = facts.found
        known = isinstance(found, bulk.Seen) and found.asked is not None
        return known and self._seals.holds(facts.access.name, found.asked)

    async def change_many(self, request: Request) -> Response:
        """Make the next part of a change of many jobs.

        A script of the page receives JSON. A browser without scripts is redirected to the page that shows the progress.
        """
        access = access_of(request)
        assert access is not None  # The rule asks for a role.
        as_json = request.headers.get("accept") == "application/json"
        acted = await act_on_many(self._sources, access, request, int(self._clock() * 1000))
        self._recent.forget()
        if isinstance(acted, Acted):
            if as_json:
                return JSONResponse({"error": acted.says}, acted.status)
            return self._sentence(request, acted.says, acted.status, back=acted.back)
        asked, (place, is_last, _) = acted
        says = bulk.says(asked, acted.made)
        if is_last:
            leads_to = query(bulk.PATH, verb=asked.verb, where=str(asked.filter), **asked.own)
        else:
            leads_to = asked.address(place, self._seals.seal(access.name, asked, place))
        leads_to = f"{_base(request)}{leads_to}&did={self._outcomes.keep(access, says)}"
        if as_json:
            return JSONResponse(
                {"at": str(place), "says": says, "is_last": is_last, "leads_to": leads_to}
            )
        return RedirectResponse(leads_to, 303)

    # Tokens.

    async def login(self, request: Request) -> Response:
        """Show the form for a token, or check the token that was entered."""
        gate = self._gate
        base = _base(request)
        if not isinstance(gate, ByToken):
            return RedirectResponse(f"{base}/", 303)
        if request.method == "GET":
            return self._render(request, "login.html", refused=False, frame=None)
        try:
            fields = dict(await form_pairs(request))
        except FormRefused as refused:
            return self._sentence(request, str(refused), refused.status)
        known = gate.tokens.by_token(fields.get("token", "").strip())
        if known is None:
            return self._render(request, "login.html", 403, refused=True, frame=None)
        answer = RedirectResponse(f"{base}/", 303)
        answer.set_cookie(
            COOKIE, gate.cookie(known), max_age=COOKIE_S, path=base or "/", httponly=True,
            samesite="lax", secure=self._behind_https or request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def logout(self, request: Request) -> Response:
        """Delete the viewer's cookie."""
        base = _base(request)
        answer = RedirectResponse(f"{base}/login", 303)
        answer.delete_cookie(COOKIE, path=base or "/")
        return answer
