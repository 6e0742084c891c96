"""`rq-core watch` and `rq-core job` show the progress and the stream of a job."""

from __future__ import annotations

import json

from click.testing import CliRunner, Result

from rq_core.cli.root import root
from tests.kit.seed import Seed


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "--redis", url])


def test_the_job_command_shows_the_progress_of_a_job_as_a_bar(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, says="30/120 row 31")
        shown = run(valkey_url, "job", "a").output
        found = json.loads(run(valkey_url, "job", "a", "--json").output)

    assert "[#####               ] 25 %, 30 of 120 row 31 (" in shown
    assert (found["progress"]["done"], found["progress"]["share"]) == (30, 0.25)


def test_the_watch_command_shows_progress_until_the_job_ends(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, says="3/- up", chunks=[(1, "one"), (5, "two\nlines")])
        seed.fail(claim)
        second = seed.claim_one("a")
        seed.show(second, chunks=[(1, "again")], claim=2)
        seed.fail(second, verdict="final")
        shown = run(valkey_url, "watch", "a")
        lines = run(valkey_url, "watch", "a", "--json", "--after", "1").output.splitlines()

    assert shown.stdout.splitlines() == ["one", "two\\nlines", "again"]
    assert shown.stderr.splitlines() == [
        "3 up",
        "(3 chunks before 5 not kept)",
        "(claim 2 begins)",
    ]
    found = [json.loads(line) for line in lines]
    assert [each["chunk"]["number"] for each in found[1:]] == [5, 6]
    assert found[0]["progress"]["total"] is None


def test_the_watch_command_shows_the_stream_of_a_job_that_has_left(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        seed.show(claim, chunks=[(1, "one")])
        seed.complete(claim)

        assert run(valkey_url, "watch", "a").stdout == "one\n"
        assert run(valkey_url, "watch", "a", "--queue", "other").exit_code == 2


def test_the_watch_command_says_that_it_knows_no_such_job(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed:
        seed.complete(seed.running("a"))
        shown = run(valkey_url, "watch", "a")
        seed.show(claim := seed.running("b"), chunks=[(1, "one")])
        seed.complete(claim)
        ended = run(valkey_url, "watch", "b", "--after", "1")

    assert (shown.exit_code, ended.exit_code, ended.output) == (1, 0, "")
    assert "no live job a, and no stream of it" in shown.stderr


def test_the_watch_command_finds_the_queue_of_a_stream_whose_job_has_left(valkey_url: str) -> None:
    with Seed(valkey_url, real_clock=True) as seed, Seed(valkey_url, "other") as other:
        other.enqueue("b")
        seed.show(claim := seed.running("a"), chunks=[(1, "one")])
        seed.complete(claim)

        assert run(valkey_url, "watch", "a").stdout == "one\n"


def test_forged_progress_is_printed_without_control_characters(valkey_url: str) -> None:
    head = "claim=1 fence=1-2 at=5 says=1 said=1 start=0 from=1 to=3 bytes=9 base=0"
    with Seed(valkey_url, real_clock=True) as seed:
        claim = seed.running("a")
        fields: dict[str, str | bytes] = {
            "a": f"{head}\n1e3/2 \x1b[2J\u202e".encode() + b"\xff",
            "a~1": b"claim=1 at=5\n\x1b]0;owned\x07\xff\xfe",
            "a~2": b"\xff" * 100_000,
            "a~3": "claim=9 at=5\nlast",
        }
        seed.control.hset(seed.keys("shown"), mapping=fields)
        job = run(valkey_url, "job", "a")
        as_json = run(valkey_url, "job", "a", "--json")
        seed.fail(claim, verdict="final")
        outputs = [
            job,
            as_json,
            run(valkey_url, "watch", "a"),
            run(valkey_url, "watch", "a", "--json"),
        ]

    for each in outputs:
        assert each.exit_code == 0, each.output
        assert not {"\x1b", "\x07", "\u202e"} & set(each.output)
        assert len(each.output) < 3_000
    assert "last" in outputs[2].stdout
