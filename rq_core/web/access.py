"""Decides who may see the web page: checks the Host of each request, tokens and cookies. Adds security headers to each
answer.

Each request must have one of the page's own names as its Host. This prevents DNS rebinding: a foreign site makes its
own name resolve to this machine, and then reads the page in a visitor's browser.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from ipaddress import ip_address
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rq_core.web.tokens import Access, Known, Tokens

OWN_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
COOKIE: Final = "rq_core_web"
COOKIE_S: Final = 12 * 3600
"""Seconds for which a cookie is valid."""
SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Request headers that only proxies add. A request with one of them may come from another machine."""
_STATE: Final = "rq_core_access"
OPEN_PATHS: Final = ("/login", "/static/")
"""Paths that need no token, because they show nothing about queues."""
NO_TOKENS: Final = (
    "this page has no tokens, so it answers only browsers on its own machine, and no proxy: make one with"
    " `rq-core web token NAME`, and start it with --tokens FILE"
)

Authorize = Callable[[Request], Access | Awaitable[Access | None] | None]
"""A function that returns the rights of a request's sender; None if the sender has none."""


class Gate(Protocol):
    """The interface of the objects that decide who may see the web page."""

    async def access(self, request: Request) -> Access | None:
        """Return the rights of a request's sender; None if the sender has none."""
        ...

    login: bool
    """True if viewers can enter a token at /login."""


class LocalOnly:
    """A gate without tokens. Only browsers on this machine may see the page, without the arguments and results of
    jobs."""

    login = False

    async def access(self, request: Request) -> Access | None:
        """Return the rights of a sender on this machine; None for any other sender.

        Only the address of the connection counts, because a sender may forge any header. A request with a header of a
        proxy gets None, because its sender may be on another machine.
        """
        proxied = any(name in request.headers for name in FORWARDED)
        return Access("local") if is_local(request.client) and not proxied else None


class Mounted:
    """A gate that asks the web app in which the page is mounted."""

    login = False

    def __init__(self, authorize: Authorize) -> None:
        self._authorize = authorize

    async def access(self, request: Request) -> Access | None:
        """Return the rights that the web app gives the request's sender; None if it gives none."""
        found = self._authorize(request)
        return await found if inspect.isawaitable(found) else found


class ByToken:
    """A gate that checks tokens from a file. Programs send a token in ``Authorization: Bearer``; browsers send a cookie
    from /login.

    The cookie has the name of the token's holder, the time at which it expires, and an HMAC. Only this process has the
    HMAC's key. At each request, the gate looks up the holder's line in the file of tokens.
    """

    login = True

    def __init__(self, tokens: Tokens, *, clock: Callable[[], float] = time.time) -> None:
        self.tokens = tokens
        self._clock = clock
        self._key = secrets.token_bytes(32)

    async def access(self, request: Request) -> Access | None:
        """Return the rights of the person whose token or cookie the request has; None if it has no valid one."""
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            known = self.tokens.by_token(token.strip())
        else:
            known = self._of_cookie(request.cookies.get(COOKIE, ""))
        return None if known is None else known.access

    def cookie(self, known: Known) -> str:
        """Return a new cookie for a token's holder."""
        says = f"{known.access.name}|{int(self._clock()) + COOKIE_S}"
        return f"{says}|{self._sign(says, known)}"

    def _of_cookie(self, cookie: str) -> Known | None:
        says, _, signed = cookie.rpartition("|")
        name, _, until = says.partition("|")
        known = self.tokens.by_name(name)
        if known is None or not (until.isascii() and until.isdigit() and len(until) < 12):
            return None
        # In bytes: a text with other characters cannot be compared.
        is_own = hmac.compare_digest(self._sign(says, known).encode(), signed.encode())
        return known if is_own and int(until) > self._clock() else None

    def _sign(self, says: str, known: Known) -> str:
        # With the token's digest, so that a name which gets a new token has no cookie any more.
        return hmac.new(self._key, f"{says}|{known.digest}".encode(), hashlib.sha256).hexdigest()


def access_of(request: Request) -> Access | None:
    """Return the rights of a request's sender, which Guard has stored in the request; None if the sender has none."""
    found: Access | None = getattr(request.state, _STATE, None)
    return found


def is_local(client: Any) -> bool:
    """Return whether the other end of a connection is on this machine.

    ``client``: (host, port). None means a Unix socket, which is on this machine.
    """
    if client is None or not client[0]:
        return client is None
    try:
        address = ip_address(client[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_local_host(host: str) -> bool:
    """Return whether a server that listens at this host can be reached only from this machine."""
    return host == "localhost" or is_local((host.strip("[]"), 0))


class Guard:
    """ASGI middleware that passes a request to the web page or refuses it. Every answer, including a refusal, has the
    security headers."""

    def __init__(self, app: ASGIApp, gate: Gate, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._gate = gate
        self._hosts = OWN_HOSTS | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request with the wrapped app's answer or a refusal, both with the security headers."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = await self._refusal(scope)
        await (refused or self._app)(scope, receive, with_headers)

    async def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if not self._is_own(Headers(scope=scope)):
            return PlainTextResponse(
                "the page does not answer at this host name: start it with --allow-host NAME\n", 400
            )
        if request.method not in ("GET", "HEAD") and not is_same_origin(request):
            return PlainTextResponse("this request comes from another site\n", 403)
        path = local_path(scope)
        access = await self._gate.access(request)
        scope.setdefault("state", {})[_STATE] = access
        if access is not None or path.startswith(OPEN_PATHS):
            return None
        if not self._gate.login:
            why = (
                NO_TOKENS if isinstance(self._gate, LocalOnly) else "you may not look at this page"
            )
            return PlainTextResponse(f"{why}\n", 403)
        if path.endswith(".json"):
            return JSONResponse({"error": "give a token: Authorization: Bearer TOKEN"}, 401)
        return RedirectResponse(f"{scope.get('root_path', '')}/login", 303)

    def _is_own(self, headers: Headers) -> bool:
        given = headers.getlist("host")
        if len(given) != 1:
            return False
        name, _, port = given[0].lower().rpartition(":")
        if not name or (given[0].startswith("[") and given[0].endswith("]")):
            name, port = given[0].lower(), "0"
        return name in self._hosts and port.isascii() and port.isdigit()


def is_same_origin(request: Request) -> bool:
    """Return whether a form comes from one of the web page's own documents, or from a program with a token. This
    prevents CSRF."""
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    if origin is not None:
        return urlsplit(origin).netloc == request.headers.get("host")
    return request.headers.get("authorization", "").lower().startswith("bearer ")


def local_path(scope: Scope) -> str:
    """Return the path of a request, relative to the path at which the web page is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith((f"{root}/",)) else path
