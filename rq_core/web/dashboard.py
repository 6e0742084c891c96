"""The app: its routes are made from the table of pages.

from rq_core.web.dashboard import dashboard

site.mount("/queues", dashboard(app, authorize=who_may_look))
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from rq_core.errors import InvalidOption, UsageError
from rq_core.metrics.causes import Unread
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
from rq_core.web.pages import ALSO, PAGES, Now, Page, asked_of
from rq_core.web.sources import NO_LOG, RecentAnswers, Sources
from rq_core.web.views import Facts, PageQuery

if TYPE_CHECKING:
    from rq_core.app.app import App

HERE: Final = Path(__file__).parent
TEMPLATES: Final = HERE / "templates"
STATIC: Final = HERE / "static"
FORM_MAX: Final = 4_096
"""Bytes of a form that are read."""


def dashboard(
    app: App,
    *,
    authorize: Authorize | None = None,
    allow_hosts: Iterable[str] = (),
) -> Starlette:
    """Make the page of an app's queues, to be mounted in a Starlette or FastAPI app.

    ``authorize`` gets each request and returns an :class:`rq_core.web.tokens.Access`, or None for who may not look;
    it may be async. ``allow_hosts`` are the names under which the site is reached.

    Raises InvalidOption without ``authorize``: every visitor of the site would see the page.
    """
    if authorize is None:
        must = (
            "must be a function of a request that returns an Access, or None for who may not look"
        )
        raise InvalidOption.of("authorize", None, must)
    sources = Sources(app.redis_url, prefix=app.prefix, audit_url=app.audit_url)
    return build_site(sources, Mounted(authorize), allow_hosts)


def build_site(
    sources: Sources,
    gate: Gate,
    hosts: Iterable[str] = (),
    *,
    clock: Callable[[], float] = time.time,
) -> Starlette:
    """Make the app. It closes ``sources`` at its end."""
    site = _Site(sources, gate, clock)
    routes: list[BaseRoute] = []
    for page in PAGES:
        endpoint = site.endpoint(page)
        places = [page.path, *([ALSO[page.name]] if page.name in ALSO else [])]
        for place in places:
            # First: a name may have a dot.
            json_path = page.json_path if place == page.path else f"{place}.json"
            routes.append(Route(json_path, endpoint, methods=["GET"]))
            routes.append(Route(place, endpoint, methods=["GET"]))
    routes += [
        Route("/login", site.login, methods=["GET", "POST"]),
        Route("/logout", site.logout, methods=["POST"]),
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
    """Return the environment of the templates: it escapes all values, and raises an error for a missing name."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= words.FILTERS
    made.globals |= {"query": words.query, "job_path": words.job_path, "menu": _menu()}
    made.globals["m"] = made.get_template("macros.html").module
    for name in made.list_templates():
        # Now, so that the first viewer does not wait for it.
        made.get_template(name)
    return made


def _menu() -> list[Page]:
    return [page for page in PAGES if "{" not in page.path]


def _base(request: Request) -> str:
    """Return the path at which the page is mounted, or that a proxy strips: the beginning of each address."""
    return str(request.scope.get("root_path", "")).rstrip("/")


class _Site:
    """Answers requests."""

    def __init__(self, sources: Sources, gate: Gate, clock: Callable[[], float]) -> None:
        self._sources = sources
        self._recent = RecentAnswers()
        self._gate = gate
        self._clock = clock
        self._templates = environment()

    def endpoint(self, page: Page) -> Callable[[Request], Any]:
        """Return the function that answers requests for a page."""

        async def answer(request: Request) -> Response:
            return await self._page(page, request)

        answer.__name__ = page.name
        return answer

    async def _page(self, page: Page, request: Request) -> Response:
        as_json = request.url.path.endswith(".json")
        now_ms = int(self._clock() * 1000)
        try:
            asked = asked_of(request.path_params, request.query_params, now_ms)
        except UsageError as error:
            return self._sentence(request, str(error), 400)
        (state, found), (log, logged) = await self._recent.get(
            (page.name, asked), lambda: self._ask(page, asked, now_ms)
        )
        access = access_of(request)
        assert access is not None  # The guard let it through.
        facts = Facts(asked, access, now_ms, state, log, found, logged)
        document = page.view(facts)
        frame = views.frame(facts)
        if as_json:
            body = json.dumps(frame | document, ensure_ascii=False, default=str)
            # What is no UTF-8 in Redis is read as lone surrogates.
            encoded = body.encode("utf-8", "backslashreplace")
            return self._tagged(request, Response(encoded, media_type="application/json"))
        html = self._render(
            request, page.template, page=page, doc=document, frame=frame, asked=asked
        )
        return self._tagged(request, html)

    async def _ask(self, page: Page, asked: PageQuery, now_ms: int) -> tuple[Any, Any]:
        """Ask both sources at the same time: a source that does not answer does not delay the other."""
        present, past = await asyncio.gather(
            self._present(page, asked, now_ms), self._past(page, asked, now_ms)
        )
        return present, past

    async def _present(self, page: Page, asked: PageQuery, now_ms: int) -> tuple[Any, Any]:
        """Read the shared reading of all queues, and the page's further data in Redis."""
        state, plan = await self._sources.state(), page.redis
        if plan is None or isinstance(state, Unread):
            return state, None
        now = Now(asked, now_ms, state=state)
        return state, await self._sources.ask_redis(lambda calls: plan(calls, now))

    async def _past(self, page: Page, asked: PageQuery, now_ms: int) -> tuple[Any, Any]:
        """Read the shared look at the audit log, and what the page also asks of it."""
        log, question = await self._sources.log(), page.log
        if log is None:
            return None, NO_LOG if page.of_past else None
        if question is None or isinstance(log, Unread):
            return log, None
        now = Now(asked, now_ms, log=log)
        return log, await self._sources.ask_log(lambda asks: question(asks, now))

    def _render(
        self, request: Request, template: str, status: int = 200, **values: Any
    ) -> Response:
        path = local_path(request.scope)
        asks = f"?{request.url.query}" if request.url.query else ""
        as_json = "/index.json" if path == "/" else f"{path}.json"
        text = self._templates.get_template(template).render(
            {"page": None} | values, base=_base(request), self_url=path + asks, json_url=as_json + asks,
            login=self._gate.login, access=access_of(request), has_log=self._sources.has_log,
        )  # fmt: skip
        return Response(text.encode("utf-8", "backslashreplace"), status, media_type="text/html")

    def _tagged(self, request: Request, response: Response) -> Response:
        """The answer, or 304 if its reader has it already."""
        tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
        response.headers["ETag"] = tag
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return response

    def _sentence(self, request: Request, says: str, status: int) -> Response:
        """Return a page that only says what is wrong."""
        if request.url.path.endswith(".json"):
            body = json.dumps({"error": says})
            return Response(body, status, media_type="application/json")
        return self._render(request, "sentence.html", status, says=says, frame=None)

    async def not_found(self, request: Request, _error: Exception) -> Response:
        """Answer that there is no such page."""
        return self._sentence(request, "there is no such page", 404)

    async def broken(self, _request: Request, _error: Exception) -> Response:
        """Answer that there is a bug, without details: the log has them."""
        says = "this page has a bug: the log of its server says more\n"
        # It is answered outside of the guard.
        return PlainTextResponse(says, 500, headers=SECURITY_HEADERS)

    # Tokens.

    async def login(self, request: Request) -> Response:
        """Show the form for a token, or accept one."""
        gate = self._gate
        base = _base(request)
        if not isinstance(gate, ByToken):
            return RedirectResponse(f"{base}/", 303)
        if request.method == "GET":
            return self._render(request, "login.html", refused=False, frame=None)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > FORM_MAX:
                return self._sentence(request, "this form is too long", 413)
        fields = dict(parse_qsl(body.decode("utf-8", "replace")))
        known = gate.tokens.by_token(fields.get("token", "").strip())
        if known is None:
            return self._render(request, "login.html", 403, refused=True, frame=None)
        answer = RedirectResponse(f"{base}/", 303)
        answer.set_cookie(
            COOKIE, gate.cookie(known), max_age=COOKIE_S, path=base or "/", httponly=True,
            samesite="lax", secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    async def logout(self, request: Request) -> Response:
        """End the viewer's cookie."""
        base = _base(request)
        answer = RedirectResponse(f"{base}/login", 303)
        answer.delete_cookie(COOKIE, path=base or "/")
        return answer
