"""Access to the page: the header Host, tokens, cookies, proxies, and a page that is mounted in another app."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from rq_core import App
from rq_core.errors import InvalidOption
from rq_core.web import tokens
from rq_core.web.access import COOKIE, COOKIE_S, ByToken, LocalOnly, is_local_host
from rq_core.web.dashboard import dashboard
from rq_core.web.tokens import Access, Tokens
from tests.web.conftest import HOST, QUEUE, Browse, Scene, read
from tests.web.test_pages import ADDRESSES, as_json, parsed

ELSEWHERE = ("203.0.113.9", 4711)


@pytest.fixture
def gate(tokens_file: Path) -> ByToken:
    """Return a gate without tokens."""
    tokens_file.touch()
    return ByToken(Tokens(tokens_file))


# Rebinding.


OTHERS = (
    "evil.example", "evil.example:8900", "localhost.evil.example", "127.0.0.1.nip.io:8900", "localhost@evil.example",
    "127.0.0.2", "[::2]:8900", "localhost:x", "", ":8900",
)  # fmt: skip


@pytest.mark.parametrize(
    "method, path",
    [("GET", "/"), ("GET", "/index.json"), ("GET", "/static/style.css"), ("POST", "/login"), ("GET", "/login"),
     ("HEAD", "/jobs.json")],
)  # fmt: skip
def test_a_request_for_another_host_is_refused(
    scene: Scene, browse: Browse, method: str, path: str
) -> None:
    page = browse()

    for host in OTHERS:
        answer = page.request(method, path, headers={"Host": host})
        assert answer.status_code == 400, host
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_a_request_for_a_host_of_the_page_itself_is_answered(scene: Scene, browse: Browse) -> None:
    page = browse()

    for host in ("localhost", "127.0.0.1:8900", "[::1]:8900", "[::1]", "LOCALHOST:1"):
        assert page.get("/", headers={"Host": host}).status_code == 200


def test_a_request_for_an_allowed_host_is_answered(scene: Scene, browse: Browse) -> None:
    page = browse(hosts=("Jobs.Example",), host="http://jobs.example")

    assert page.get("/").status_code == 200


def test_a_request_with_two_hosts_is_refused(scene: Scene, browse: Browse) -> None:
    page = browse()
    request = page.build_request(
        "GET", "/", headers=[("Host", "localhost"), ("Host", "evil.example")]
    )

    assert page.send(request).status_code == 400


# Without tokens.


PEERS = [
    (("127.0.0.1", 5), 200),
    (("::1", 5), 200),
    (("::ffff:127.0.0.1", 5), 200),
    (ELSEWHERE, 403),
]


@pytest.mark.parametrize("client, status", PEERS)
def test_without_tokens_only_browsers_on_this_machine_can_see_the_page(
    scene: Scene, browse: Browse, client: tuple[str, int], status: int
) -> None:
    page = browse(gate=LocalOnly(), client=client)

    for path in ADDRESSES.values():
        assert page.get(path).status_code == page.get(as_json(path)).status_code == status


def test_without_tokens_a_forged_header_gives_no_access(scene: Scene, browse: Browse) -> None:
    near, far = browse(gate=LocalOnly()), browse(gate=LocalOnly(), client=ELSEWHERE)

    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "Via", "X-Forwarded-Host"):
        forged = {name: "127.0.0.1"}
        assert far.get("/", headers=forged).status_code == 403
        assert near.get("/", headers=forged).status_code == 403


def test_without_tokens_no_viewer_sees_the_arguments_of_jobs(busy: Scene, browse: Browse) -> None:
    assert browse(gate=LocalOnly()).get("/index.json").json()["sees_arguments"] is False


@pytest.mark.parametrize(
    "host, local",
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("127.8.8.8", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("box", False), ("", False)],  # noqa: S104 - read only
)  # fmt: skip
def test_is_local_host_accepts_only_addresses_of_this_machine(host: str, local: bool) -> None:
    assert is_local_host(host) is local


# Tokens.


def test_only_a_request_with_a_valid_token_gets_the_pages(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    token = tokens.add_token(tokens_file, "ann")
    page = browse(gate=gate, client=ELSEWHERE)

    assert page.get("/").status_code == 303
    assert page.get("/").headers["location"] == "/login"
    assert page.get("/index.json").status_code == 401
    assert page.get("/index.json", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    for other in (f"{token}x", token[:-1], "", "é"):
        given = {b"Authorization": f"Bearer {other}".encode()}
        assert page.get("/index.json", headers=given).status_code == 401


def test_every_page_requires_a_token(scene: Scene, browse: Browse, gate: ByToken) -> None:
    page = browse(gate=gate)

    for path in (*ADDRESSES.values(), "/queue?queue=mail", "/job?queue=mail&id=a"):
        assert page.get(path).status_code == 303
        assert page.get(as_json(path)).status_code == 401


def test_every_route_except_the_login_and_the_static_files_needs_a_token(
    scene: Scene, browse: Browse, gate: ByToken
) -> None:
    """Checks each route of the site. The test fails for a new route without a rule."""
    page = browse(gate=gate)
    site: Any = page.app
    open_ones = []
    for route in site.routes:
        filled = re.sub(r"\{\w+\}", "x", getattr(route, "path", ""))
        for method in sorted(getattr(route, "methods", None) or {"GET"}):
            answer = page.request(method, filled, headers={"Sec-Fetch-Site": "same-origin"})
            if answer.status_code not in (303, 401) or filled == "/login":
                open_ones.append(filled)

    assert len(site.routes) > 2 * len(ADDRESSES)
    assert set(open_ones) == {"/login"}
    assert page.get("/static/style.css").status_code == 200


LEADS_AWAY = (
    "//evil.example", "//evil.example/jobs/", "/%2f%2fevil.example/", "/\\evil.example", "/jobs/", "/login/",
    "/login?next=//evil.example", "/jobs?q=//evil.example", "/jobs?id=..&queue=..", "/at//evil.example/..",
)  # fmt: skip


@pytest.mark.parametrize("path", LEADS_AWAY)
@pytest.mark.parametrize("root_path", ["", "/ops"])
def test_no_redirect_leads_to_another_site(
    busy: Scene, browse: Browse, path: str, root_path: str
) -> None:
    page = browse(root_path=root_path)

    for method in ("GET", "POST"):
        headers = {"Sec-Fetch-Site": "same-origin"}
        answer = page.request(method, f"{HOST}{root_path}{path}", headers=headers)
        leads = urljoin(HOST + root_path + path, answer.headers.get("location", ""))
        assert urlsplit(leads).netloc == urlsplit(HOST).netloc
        assert not answer.headers.get("location", "").startswith(("//", "/\\"))


def login(page: TestClient, token: str, **headers: str) -> int:
    given = {"Sec-Fetch-Site": "same-origin"} | headers
    return page.post("/login", data={"token": token}, headers=given).status_code


def test_a_browser_gets_a_cookie_that_is_invalid_once_its_token_is_removed(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    token = tokens.add_token(tokens_file, "ann", see_arguments=True)
    page = browse(gate=gate)

    assert (
        "No token is like this one"
        in page.post(
            "/login", data={"token": "guess"}, headers={"Sec-Fetch-Site": "same-origin"}
        ).text
    )
    answer = page.post("/login", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"})
    cookie = answer.headers["set-cookie"]
    assert re.search(r"; HttpOnly; Max-Age=43200; Path=/; SameSite=lax", cookie)
    assert token not in cookie
    assert page.get("/index.json").json()["sees_arguments"] is True

    assert tokens.remove_token(tokens_file, "ann")

    assert page.get("/").status_code == 303
    assert page.get("/index.json").status_code == 401


def test_a_changed_role_in_the_token_file_is_in_force_at_once(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    page = browse(gate=gate)
    login(page, tokens.add_token(tokens_file, "ann", see_arguments=True))
    assert page.get("/index.json").json()["sees_arguments"] is True

    tokens_file.write_text(tokens_file.read_text().replace("viewer+arguments", "viewer"))

    assert page.get("/index.json").json()["sees_arguments"] is False


def test_a_cookie_of_a_replaced_token_is_refused(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    page = browse(gate=gate)
    login(page, tokens.add_token(tokens_file, "ann"))
    assert page.get("/").status_code == 200

    tokens.add_token(tokens_file, "ann")

    assert page.get("/").status_code == 303


def test_a_cookie_expires_after_twelve_hours(
    scene: Scene, browse: Browse, tokens_file: Path
) -> None:
    now = [1_800_000_000.0]
    token = tokens.add_token(tokens_file, "ann")
    page = browse(gate=ByToken(Tokens(tokens_file), clock=lambda: now[0]))
    login(page, token)

    now[0] += COOKIE_S - 1
    assert page.get("/").status_code == 200
    now[0] += 1
    assert page.get("/").status_code == 303


def test_a_cookie_that_was_changed_is_refused(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    tokens.add_token(tokens_file, "bob", see_arguments=True)
    page = browse(gate=gate)
    login(page, tokens.add_token(tokens_file, "ann"))
    cookie = page.cookies[COOKIE].strip('"')
    name, until, signed = cookie.split("|")
    page.cookies.clear()

    forged = [
        f"bob|{until}|{signed}", f"{name}|{int(until) + 9}|{signed}", f"{name}|{until}|{signed[:-1]}",
        f"{name}|{until}|", "ann", "||", "", f"{name}|{until}|{'é' * 64}", f"{name}|x|{signed}",
    ]  # fmt: skip
    for each in forged:
        headers = {b"Cookie": f"{COOKIE}={each}".encode()}
        assert page.get("/", headers=headers).status_code == 303
    assert page.get("/", headers={"Cookie": f"{COOKIE}={cookie}"}).status_code == 200


def test_a_form_that_another_site_sends_is_refused(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    token = tokens.add_token(tokens_file, "ann")
    page = browse(gate=gate)

    assert login(page, token, **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert login(page, token, **{"Sec-Fetch-Site": "same-site"}) == 403
    bare = {"token": token}
    assert (
        page.post("/login", data=bare, headers={"Origin": "http://evil.example"}).status_code == 403
    )
    assert page.post("/login", data=bare).status_code == 403
    assert page.post("/login", data=bare, headers={"Origin": HOST}).status_code == 303


def test_a_form_that_is_too_long_is_refused(scene: Scene, browse: Browse, gate: ByToken) -> None:
    assert login(browse(gate=gate), "x" * 100_000) == 413


def test_a_logout_deletes_the_cookie(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    page = browse(gate=gate)
    login(page, tokens.add_token(tokens_file, "ann"))

    page.post("/logout", headers={"Sec-Fetch-Site": "same-origin"})

    assert page.get("/").status_code == 303


def test_the_token_file_has_no_token_in_clear_text(
    tokens_file: Path,
) -> None:
    token = tokens.add_token(tokens_file, "ann")
    tokens.add_token(tokens_file, "bob", see_arguments=True)

    text = tokens_file.read_text()
    assert token not in text
    assert re.fullmatch(r"ann viewer [0-9a-f]{64}\nbob viewer\+arguments [0-9a-f]{64}\n", text)
    assert tokens_file.stat().st_mode & 0o777 == 0o600
    assert len(Tokens(tokens_file)) == 2
    assert not tokens.remove_token(tokens_file, "carl")


@pytest.mark.parametrize(
    "line", ["ann owner " + "0" * 64, "ann viewer " + "0" * 63, "a/b viewer " + "0" * 64, "hello"]
)
def test_a_token_file_with_an_invalid_line_is_refused(tokens_file: Path, line: str) -> None:
    tokens_file.write_text(f"{line}\n")

    with pytest.raises(InvalidOption, match="line 1 is invalid"):
        Tokens(tokens_file)


def test_a_missing_token_file_gives_no_access(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    page = browse(gate=gate)
    login(page, tokens.add_token(tokens_file, "ann"))
    assert page.get("/").status_code == 200

    tokens_file.unlink()

    assert page.get("/").status_code == 303


# Mounted.


def test_mounting_without_authorize_is_refused() -> None:
    with pytest.raises(InvalidOption, match="authorize=None"):
        dashboard(App("redis://127.0.0.1:1"))


def test_a_mounted_page_serves_only_viewers_that_authorize_accepts(
    busy: Scene,
) -> None:
    app = App(busy.url, audit=busy.audit_url)

    async def authorize(request: object) -> Access | None:
        return Access("ann") if getattr(request, "headers", {}).get("x-user") else None

    made = dashboard(app, authorize=authorize)
    site = Starlette(routes=[Mount("/ops/queues", made)])
    with TestClient(site, base_url=HOST, follow_redirects=False) as client:
        user = {"X-User": "ann"}
        assert client.get("/ops/queues/").status_code == 403
        assert client.get("/ops/queues/index.json").status_code == 403
        text = client.get("/ops/queues/", headers=user).text
        links = parsed(text).links
        assert all(link.startswith(("/ops/queues/", "#")) for link in links)
        broken = [
            x for x in links if x[0] != "#" and client.get(x, headers=user).status_code != 200
        ]
        assert broken == []
        assert 'href="/ops/queues/static/style.css"' in text
        assert client.get("/ops/queues/static/style.css", headers=user).status_code == 200
        assert (
            client.get("/ops/queues/", headers=user | {"Host": "evil.example"}).status_code == 400
        )
    made.state.sources.close()
    app.close()


def test_links_have_the_prefix_that_a_proxy_strips(busy: Scene, browse: Browse) -> None:
    page = browse(root_path="/jobs-of-shop")

    text = read(page, "/jobs-of-shop/")

    assert all(link.startswith(("/jobs-of-shop/", "#")) for link in parsed(text).links)
    assert QUEUE in read(page, f"/jobs-of-shop/queues/{QUEUE}")


@pytest.mark.parametrize(
    "behind_https, scheme, secure", [(True, "http", True), (False, "http", False), (False, "https", True)]
)  # fmt: skip
def test_the_cookie_is_marked_secure_only_if_browsers_reach_the_page_over_https(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path, behind_https: bool, scheme: str, secure: bool
) -> None:  # fmt: skip
    token = tokens.add_token(tokens_file, "ann")
    page = browse(gate=gate, behind_https=behind_https, host=f"{scheme}://localhost:8900")

    answer = page.post(
        "/login", data={"token": token},
        headers={"Sec-Fetch-Site": "same-origin", "X-Forwarded-Proto": "http" if secure else "https"},
    )  # fmt: skip

    assert ("; Secure" in answer.headers["set-cookie"]) is secure


def test_behind_a_proxy_the_cookie_and_the_redirects_have_the_prefix_of_the_page(
    scene: Scene, browse: Browse, gate: ByToken, tokens_file: Path
) -> None:
    page = browse(gate=gate, root_path="/queues")
    token = tokens.add_token(tokens_file, "ann")

    assert page.get("/queues/").headers["location"] == "/queues/login"
    answer = page.post(
        "/queues/login", data={"token": token}, headers={"Sec-Fetch-Site": "same-origin"}
    )
    assert "; Path=/queues;" in answer.headers["set-cookie"]
    assert answer.headers["location"] == "/queues/"
    scene.seed.enqueue("only")
    assert page.get("/queues/jobs?q=only").headers["location"] == f"/queues/jobs/{QUEUE}/only"


# Headers.


def test_every_answer_has_the_security_headers(scene: Scene, browse: Browse) -> None:
    page = browse()

    for path in ("/", "/index.json", "/static/style.css", "/nothing", "/jobs?queue=a/b"):
        headers = page.get(path).headers
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"


def test_a_page_for_viewers_has_no_address_that_accepts_a_change(
    scene: Scene, browse: Browse
) -> None:
    page = browse()

    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for path in ADDRESSES.values():
            answer = page.request(method, path, headers={"Sec-Fetch-Site": "same-origin"})
            assert answer.status_code == 405
