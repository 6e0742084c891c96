"""The search of /jobs: its words, whether Redis or the log answers, and the pages of ended claims."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest

from rq_core.errors import InvalidOption
from rq_core.model.filters.job_filter import Filter
from rq_core.web.access import Mounted
from rq_core.web.search import OUTCOMES, WORDS, PageQuery, asked_of
from rq_core.web.tokens import OPERATOR, Access
from sql_audit.queries import ended_claims
from sql_audit.store.schema.tables import OUTCOMES as LOGGED_OUTCOMES
from tests.web.conftest import QUEUE, SECRET, Browse, Scene, read
from tests.web.test_pages import parsed

NOW_MS = 1_800_000_000_000


def asked(text: str, **asks: str) -> PageQuery:
    return asked_of({}, [("q", text), *asks.items()], NOW_MS)


def test_the_search_box_reads_the_text_of_a_filter() -> None:
    text = (
        "queue:mail task:send state:ready,dead priority:low lane:2+tenant=acme scope:tenant=acme worker:w-1 older:1h"
        ' failed:2 since:"2027-01-15 07:00" header:tenant=acme header:k=v arg:"to=a b"'
    )

    assert asked(text).filter == Filter.parse(text)
    assert asked(str(Filter.parse(text))).filter == Filter.parse(text)
    # The words of a search stay as they were written: a moment moves on with the clock.
    assert asked("queue:mail since:1h").words == (("queue", "mail"), ("since", "1h"))


def test_a_word_without_a_colon_is_an_id() -> None:
    assert asked("01a1ee").job_id == asked("id:01a1ee").job_id == "01a1ee"
    assert asked("id:user:42").job_id == "user:42"
    assert asked("").words == ()


@pytest.mark.parametrize(
    "text, why",
    [
        ("color:red", "must have words of these: queue, task"), ("user:42", "id:user:42"), ("a b", "have id once"),
        ("queue:a queue:b", "queue once"), ("x" * 2_000, "at most 1000 characters"),
        ("state:asleep", "states of these"),
        ("outcome:done", "must be one of"), ("queue:a/b", "a/b"), ("task:a/b", "a/b"), ("since:yesterday", "like 2026"),
        ("id:a/b", "a/b"), (f"worker:{'w' * 400}", "worker"), ("outcome:any", "say queue:"),
        ("state:ready error:E", "only dead jobs have an error"), ("arg:to", "must be NAME=VALUE"),
        *((f"{word} outcome:failed queue:a", f"{word.partition(':')[0]} is asked of Redis")
          for word in ("lane:2", "state:dead", "older:1h", "header:a=b", "priority:low", "failed:1")),
    ],
)  # fmt: skip
def test_the_error_of_an_invalid_word_in_a_search_names_the_word(text: str, why: str) -> None:
    with pytest.raises(Exception, match=re.escape(why)):
        asked(text)


def test_a_search_has_the_same_meaning_in_the_box_and_in_the_address() -> None:
    box = asked("since:1h outcome:died queue:mail task:send")
    address = asked("", queue="mail", task="send", outcome="died", since="1h")

    assert box == address
    assert box.text == "queue:mail task:send since:1h outcome:died"
    assert box.filter.instants_ms == (NOW_MS - 3_600_000, None)
    assert box.path(task=None, since="2h") == "/jobs?queue=mail&since=2h&outcome=died"
    spaced = asked("", queue="mail", arg="to=a b")
    assert asked(spaced.text).filter == spaced.filter
    two = asked("queue:mail header:a=b header:c=d")
    assert two.path() == "/jobs?queue=mail&header=a%3Db&header=c%3Dd"


def test_a_search_accepts_exactly_the_outcomes_of_the_log() -> None:
    assert set(OUTCOMES) == set(LOGGED_OUTCOMES)


@pytest.mark.parametrize("behind", ["x", "1/2", "1/2/q/", "9" * 20 + "/1-1/q/j", "1/1-1/q"])
def test_an_invalid_position_in_a_list_of_pages_is_refused(behind: str) -> None:
    with pytest.raises(InvalidOption, match="behind"):
        asked("", behind=behind)


# On a server.


Ids = Callable[..., list[str]]


@pytest.fixture
def ids(busy: Scene, browse: Browse) -> Ids:
    """Return a function that runs a search, and returns the ids of the found jobs."""
    page = browse()

    def search(text: str, place: str = "jobs") -> list[str]:
        found = page.get(f"/jobs.json?q={quote(text)}").json()
        return sorted(each["id" if place == "jobs" else "job_id"] for each in found[place])

    return search


def test_a_search_finds_live_jobs_in_redis(ids: Ids) -> None:
    alive = ["holds", "later", "ready", "scheduled", "waits"]
    for text, found in (
        ("", alive), ("worker:w-1", ["holds"]), ("worker:w-2", []), ("scope:tenant=acme", ["holds", "waits"]),
        ("scope:tenant=other", []), ("state:ready task:t", ["later", "ready", "waits"]), ("state:dead", ["died"]),
        ("lane:0+tenant=acme state:ready", ["waits"]), ("older:1h", []), ("priority:critical", ["holds", "waits"]),
        ("due:2h", ["scheduled"]), ("due:1m", []), ("error:SmtpError", ["died"]), ("error:Other", []),
        ("state:dead since:1h", ["died"]), ("until:1h", []), ("error:SmtpError since:1h failed:1", ["died"]),
    ):  # fmt: skip
        assert ids(f"queue:{QUEUE} {text}") == found, text


def test_a_search_finds_ended_claims_in_the_log(ids: Ids) -> None:
    for text, found in (
        ("outcome:any", ["died", "done"]), ("outcome:succeeded", ["done"]), ("outcome:failed", ["died"]),
        ("outcome:died error:SmtpError", ["died"]), ("outcome:failed error:Other", []),
        ("outcome:any worker:w-1 since:1h", ["died", "done"]), ("outcome:any since:1h until:30m", []),
        ("outcome:any task:other", []), ("outcome:any scope:tenant=acme", []),
    ):  # fmt: skip
        assert ids(f"queue:{QUEUE} {text}", "claims") == found, text
        assert ids(f"queue:{QUEUE} {text}") == []


def test_a_search_without_a_queue_finds_failures_of_all_queues(ids: Ids) -> None:
    assert ids("outcome:failed", "claims") == ["died"]
    assert ids("outcome:failed since:1h", "claims") == ["died"]


def test_a_search_for_an_id_leads_to_its_job_in_any_queue(busy: Scene, browse: Browse) -> None:
    other = busy.seed.of("other")
    other.enqueue("only-there", "ready")
    page = browse()

    for text, place in (("only-there", "/jobs/other/only-there"), ("done", f"/jobs/{QUEUE}/done"),
                        (f"queue:{QUEUE} id:done", f"/jobs/{QUEUE}/done")):  # fmt: skip
        answer = page.get("/jobs", params={"q": text})
        assert (answer.status_code, answer.headers["location"]) == (303, place)
    assert page.get("/jobs.json", params={"q": "done"}).json()["leads_to"] == f"/jobs/{QUEUE}/done"
    assert "No queue in Redis has a job with the id never" in read(page, "/jobs?q=never")


def test_a_search_for_an_id_of_two_queues_shows_both_jobs(busy: Scene, browse: Browse) -> None:
    other = busy.seed.of("other")
    other.enqueue("done")

    text = read(browse(), "/jobs?q=done")

    assert {f"/jobs/{QUEUE}/done", "/jobs/other/done"} <= set(parsed(text).links)


def test_a_search_of_the_past_without_a_log_says_that_it_needs_a_log(
    busy: Scene, browse: Browse
) -> None:
    page = browse(log=False)

    text = read(page, f"/jobs?queue={QUEUE}&outcome=failed")

    assert "start it with --audit URL" in text
    assert "outcome=" not in read(page, f"/jobs?queue={QUEUE}")


def test_pages_of_claims_link_to_the_next_page(busy: Scene, browse: Browse) -> None:
    seed = busy.seed
    for first in range(0, 250, 50):
        names = [f"n-{n}" for n in range(first, first + 50)]
        seed.enqueue(*[seed.job(name, priority="critical") for name in names])
        jobs = [seed.claim_one(name) for name in names]
        seed.complete(*jobs)
    busy.mirror()
    page = browse()
    path, found = f"/jobs?queue={QUEUE}&outcome=succeeded", []

    while path:
        place, _, asks = path.partition("?")
        document = page.get(f"{place}.json?{asks}").json()
        found.append([each["job_id"] for each in document["claims"]])
        text = read(page, path)
        assert ("go on →" in text) == bool(document["next"])
        path = document["next"]

    assert [len(each) for each in found] == [100, 100, 51]
    assert len({each for some in found for each in some}) == 251
    assert document["live"] is False


def test_a_page_that_reached_its_bound_says_how_far_back_it_searched(
    busy: Scene, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_claims, "LOOKED_MAX", 1)
    monkeypatch.setattr(ended_claims, "FIRST_STEP", 1)
    page = browse()

    document = page.get(f"/jobs.json?queue={QUEUE}&outcome=any&worker=nobody").json()
    text = read(page, f"/jobs?queue={QUEUE}&outcome=any&worker=nobody")

    assert (document["claims"], document["looked"]) == ([], 1)
    assert document["searched_to_ms"] > 0
    assert re.search(r"Searched back to <time", text)


def test_a_search_page_links_to_similar_searches(busy: Scene, browse: Browse) -> None:
    page = browse()
    path = f"/jobs?queue={QUEUE}&task=t&state=ready"
    document = json.loads(page.get(path.replace("/jobs", "/jobs.json")).text)

    links = [each["without"] for each in document["words"]]
    links += [each["path"] for some in document["choices"].values() for each in some]

    assert [each["word"] for each in document["words"]] == ["queue", "task", "state"]
    assert len(links) > 10
    assert [link for link in links if page.get(link).status_code != 200] == []
    on = [each["says"] for each in document["choices"]["states"] if each["on"]]
    assert on == ["ready"]
    assert set(WORDS) > {"queue", "task", "state"}


def test_markup_in_a_search_is_shown_as_text(busy: Scene, browse: Browse) -> None:
    page, markup = browse(), "<img/src=x/onerror=alert(1)>'{{7*7}}"

    for text in (markup, f"worker:{markup} queue:{QUEUE}", f"error:{markup} scope:{markup}"):
        answer = page.get("/jobs", params={"q": text})
        assert "<img" not in answer.text
        assert "&lt;img/src=x" in answer.text
        assert parsed(answer.text).open == []


def test_a_link_omits_a_condition_that_a_search_cannot_express(
    scene: Scene, browse: Browse
) -> None:
    """Checks an error type that is longer than a search may be."""
    scene.die("died", json.dumps({"type": "E" * 5_000, "message": "", "traceback": ""}))
    scene.mirror()
    page = browse()

    (deaths,) = page.get("/dead.json").json()["deaths"]

    place, _, asks = deaths["path"].partition("?")
    claims = page.get(f"{place}.json?{asks}").json()["claims"]
    assert [each["job_id"] for each in claims] == ["died"]


def test_only_viewers_who_may_see_headers_and_arguments_can_search_them(
    busy: Scene, browse: Browse
) -> None:
    seed = busy.seed
    seed.enqueue(
        seed.job("laden", args_json='{"to": "x@y.z", "n": 3}')._replace(
            headers_json='{"tenant":"acme"}'
        )
    )
    page = browse(see_arguments=True)

    for text, found in (
        ("arg:to=x@y.z", ["laden"]), ("arg:n=3 header:tenant=acme", ["laden"]), ("arg:n=4", []),
        ("header:tenant=other", []), (f"arg:to={SECRET} state:ready", ["later", "ready"]),
    ):  # fmt: skip
        document = page.get("/jobs.json", params={"q": f"queue:{QUEUE} {text}"}).json()
        assert sorted(each["id"] for each in document["jobs"]) == found, text
    for other in (browse(), browse(gate=Mounted(lambda _: Access("ann", role=OPERATOR)))):
        for path in ("/jobs", "/jobs.json"):
            answer = other.get(path, params={"q": f"queue:{QUEUE} arg:n=3"})
            assert answer.status_code == 403
            assert "who may see the arguments" in answer.text
            assert "laden" not in answer.text


def test_a_search_page_links_only_to_changes_of_states_that_the_search_lists(
    busy: Scene, browse: Browse
) -> None:
    page = browse(gate=Mounted(lambda _: Access("ann", role=OPERATOR)))
    for text, verbs in (
        ("task:t", ["cancel", "edit"]), ("state:ready", ["cancel", "edit"]), ("state:running", ["cancel"]),
        ("state:running,cancelling", []), ("state:dead", ["requeue", "prune"]), ("outcome:failed", []), ("", []),
        ("error:SmtpError", ["requeue", "prune", "copy"]), ("outcome:died since:1h", ["copy"]),
        ("state:dead since:1h", ["requeue", "prune", "copy"]), ("state:dead failed:1", ["requeue", "prune"]),
        ("due:1h", ["cancel", "edit"]),
    ):  # fmt: skip
        document = page.get("/jobs.json", params={"q": f"queue:{QUEUE} {text}"}).json()
        assert [each["says"] for each in document["many"]] == verbs, text
        for each in document["many"]:
            assert page.get(each["path"].replace("?", ".json?")).json()["wrong"] == "", text
