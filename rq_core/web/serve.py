"""Runs the server of ``rq-core web``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from rq_core.app.app import App
from rq_core.errors import InvalidOption
from rq_core.model.keys import DEFAULT_PREFIX
from rq_core.process.http_port import parse_address
from rq_core.web.access import ByToken, Gate, LocalOnly, is_local_host
from rq_core.web.dashboard import build_site
from rq_core.web.sources import ActingSources
from rq_core.web.tokens import Tokens


@dataclass(frozen=True)
class WebOptions:
    """The options of the command ``rq-core web serve``."""

    listen: str
    redis_url: str
    prefix: str = DEFAULT_PREFIX
    audit_url: str | None = None
    tokens: Path | None = None
    allow_hosts: Sequence[str] = ()
    root_path: str = ""
    behind_https: bool = False
    inbox_url: str | None = None
    app: App | None = None
    """The app, whose tasks are needed to enqueue copies of jobs; None if the process has no code of tasks."""


def gate_of(options: WebOptions) -> Gate:
    """Return the gate that decides who may see the web page.

    Raises InvalidOption if other machines can reach the address and there are no tokens.
    """
    host, _ = parse_address(options.listen, option="listen")
    if options.tokens is not None:
        return ByToken(Tokens(options.tokens))
    if not is_local_host(host):
        must = (
            "must be an address of this machine alone, like 127.0.0.1:8900, as long as there are no tokens: make one"
            " with `rq-core web token NAME`, and give --tokens FILE"
        )
        raise InvalidOption.of("listen", options.listen, must)
    return LocalOnly()


def serve_page(options: WebOptions, say: Callable[[str], None]) -> None:
    """Serve the web page until SIGTERM or Ctrl-C. ``say`` prints the page's address."""
    host, port = parse_address(options.listen, option="listen")
    gate = gate_of(options)
    if options.root_path and (
        not options.root_path.startswith("/") or options.root_path.endswith("/")
    ):
        raise InvalidOption.of("root_path", options.root_path, "must be like /queues")
    sources = ActingSources(
        options.redis_url,
        prefix=options.prefix,
        audit_url=options.audit_url,
        inbox_url=options.inbox_url,
        app=options.app,
    )
    with contextlib.closing(sources):
        server = uvicorn.Server(
            uvicorn.Config(
                build_site(sources, gate, options.allow_hosts, behind_https=options.behind_https),
                host=host.strip("[]"),
                port=port,
                # What a proxy says of its client decides nothing here.
                proxy_headers=False,
                server_header=False,
                root_path=options.root_path,
                log_level="warning",
                timeout_graceful_shutdown=3,
            )
        )
        socket = server.config.bind_socket()
        bound = socket.getsockname()[1]
        shown = f"[{host}]" if ":" in host.strip("[]") else host
        say(f"the page is at http://{shown}:{bound}{options.root_path}/")
        server.run(sockets=[socket])
