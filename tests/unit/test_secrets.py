"""Passwords. No error shows a password, wherever a program gets a URL from, and even if the URL is misspelt."""

from __future__ import annotations

import json
import logging
import pickle
import time
import timeit
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rq_core import App
from rq_core.app.handlers.redaction import describe_error
from rq_core.connections.open import open_transport
from rq_core.errors import InboxMissing, InvalidOption, RqCoreError
from rq_core.masking import masked
from rq_core.model.lib import logs
from rq_core.model.lib.text import READ_MAX, excerpt
from rq_core.protocol.engine.plan import Patience
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database

SECRETS = ("hunter", "second")
"""The parts of each password below: one before and one after the character that people forget to escape."""
PASSWORDS = ["huntersecond", "hunter/second", "hunter@second", "hunter#second", "hunter?second"]
REDIS = [
    "redis://:{p}@127.0.0.1:1/0",
    "redis://user:{p}@127.0.0.1:port/0",
    "redis://user:{p}@127.0.0.1:1/first",
    "redis://user:{p}@127.0.0.1:1/0?socket_timeout=long",
    "redis://user:{p}@127.0.0.1:1/0?no_such_option=1",
    "rediss://user:{p}@127.0.0.1:1/0?ssl_ca_certs=/there/is/none",
    "redis://127.0.0.1:1/0?password={p}&no_such_option=1",
    "redis://127.0.0.1:1/0?pass%77ord={p}&no_such_option=1",
    "redis+cluster://user:{p}@127.0.0.1:1/0",
    "redis+sentinel://user:{p}@127.0.0.1:1/main?sentinel_password={p}",
    "redis+sentinel://127.0.0.1:1/main?sentinel_password={p}&db=first",
    "redis+sentinel://user:{p}@127.0.0.1:one/main",
    "http://user:{p}@127.0.0.1:1/0",
    "user:{p}@127.0.0.1:1",
    ":{p}@127.0.0.1:1",
    "//user:{p}@127.0.0.1:1",
]
SQL = [
    "postgresql://user:{p}@127.0.0.1:1/d",
    "postgresql://user:{p}@127.0.0.1:port/d",
    "postgresql://127.0.0.1:1/d?password={p}&user=u",
    "postgresql://127.0.0.1:1/d?pass%77ord={p}&user=u",
    "postgresql://user@127.0.0.1:1/d?password={p}&no_such_option=1",
    "postgresql://user@127.0.0.1:1/d?passfile=/there/is/none&sslpassword={p}",
    "mysql://user:{p}@127.0.0.1:1/d",
    "user:{p}@127.0.0.1:1/d",
    "host=127.0.0.1 port=1 user=u password={p}",
    "host=127.0.0.1 port=1 password='{p} {p}'",
]


def texts_of(error: BaseException | None) -> Iterator[str]:
    """Yield each text in which a program may show an error or send it on."""
    while error is not None:
        yield str(error)
        yield repr(error)
        yield repr(error.args)
        if isinstance(error, RqCoreError):
            yield repr(vars(error))
            yield repr(pickle.loads(pickle.dumps(error)).__dict__)  # noqa: S301 - ours
        yield from texts_of(error.__context__)
        error = error.__cause__


def assert_no_secret(text: str) -> None:
    assert not [secret for secret in SECRETS if secret in text], text


def assert_tells_no_secret(error: BaseException) -> None:
    for text in texts_of(error):
        assert_no_secret(text)


def use_redis(url: str) -> None:
    with App(redis=url, patience=Patience(unsent=0.1, unknown=0.1)) as app:
        app.client.run(app.client.calls.reads.queues())


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("url", REDIS)
@pytest.mark.parametrize("use", [open_transport, use_redis])
def test_no_error_about_a_server_contains_a_password(
    use: Callable[[str], Any], url: str, password: str
) -> None:
    try:
        use(url.format(p=password))
    except RqCoreError as error:
        assert_tells_no_secret(error)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("url", SQL)
def test_no_error_about_a_database_contains_a_password(
    url: str, password: str, tmp_path: Any
) -> None:
    with pytest.raises(RqCoreError) as caught:
        migrate.check_current(Database(url.format(p=password)))

    assert_tells_no_secret(caught.value)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("url", [*REDIS, *SQL])
def test_a_password_is_masked_in_every_url_of_a_text(url: str, password: str) -> None:
    url = url.format(p=password)

    for text in (url, f"cannot reach {url}, says redis-py", f"({url!r})", f"url={url}"):
        assert_no_secret(masked(text))
    assert "127.0.0.1" in masked(url)


@pytest.mark.parametrize(
    "text",
    [
        "redis://localhost:6379/0",
        "no scope 'ask.model@60s:tokens=gpt': known are others",
        "postgresql://user@host/database",
        "unix:///run/redis.sock",
        "by ops@example.org at 10:00:00",
        "tenant=acme",
        "task mail.send of queue mail: 3 of 5 attempts",
    ],
)
def test_a_text_without_a_password_is_not_changed(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "bad blob={}ab12", "{}password =", "{}token='a", "token='{}\\'", "x@ {}//a:", "x@ {}//", "x@ {}a:", "x@ {}(a:",
        "x@ {}a='", "x @{}@", "= {} ",
    ],
)  # fmt: skip
def test_masking_takes_time_in_proportion_to_the_length_of_a_text(text: str) -> None:
    before, _, repeated = text.partition("{}")

    def seconds(length: int) -> float:
        given = before + repeated * (length // len(repeated))
        # This thread's own, since others may want the processor meanwhile.
        return min(timeit.repeat(lambda: masked(given), timer=time.thread_time, number=1, repeat=5))

    # Ten times the text: a hundred times as long if each character is tried as a beginning.
    assert seconds(40_000) < 40 * seconds(4_000) + 0.002


def test_a_password_in_unclosed_quotes_is_masked_to_the_end_of_the_text() -> None:
    assert masked("password='hunter second") == "password=***"


@pytest.mark.parametrize("at", [logs.TEXT_MAX // 2, READ_MAX // 2])
def test_shortening_a_long_text_leaves_no_part_of_a_password(at: int) -> None:
    url = f"redis://user:{'hunter' * 100}@h"
    for before in range(at - 300, at + 300, 100):
        text = "m " * (before // 2) + url + " m" * READ_MAX

        assert_no_secret(excerpt(text, logs.TEXT_MAX))


def test_a_very_long_word_in_an_error_text_is_left_out_quickly() -> None:
    """The beginning of the text stays."""
    error = ValueError("bad blob=" + "ab12" * 5_000_000)

    said = json.loads(describe_error(error))

    assert said["message"].startswith("bad ")
    assert len(said["message"]) < 2_200


def test_the_error_of_an_unescaped_character_in_a_password_says_how_to_write_it() -> None:
    with pytest.raises(InvalidOption, match="write %2F for /"):
        open_transport("redis://user:a/b@host:6379/0")


@pytest.fixture
def record() -> logging.LogRecord:
    """Return a log record with several lines, an escape sequence, a password, and a fact with a line end."""
    error = ValueError("boom\n2026-11-21T10:00:00.000Z INFO forged too\x1b[2J")
    says = "at redis://u:hunter@h\n2026-11-21 INFO forged\x1b[2J"
    made = logging.LogRecord("x", logging.ERROR, "f.py", 1, says, (), (ValueError, error, None))
    made.job = "a\nb"
    return made


def test_a_text_log_contains_no_password_and_no_forged_line(
    record: logging.LogRecord,
) -> None:
    first, *others = logs.TextFormatter().format(record).split("\n")

    assert "redis://u:***@h" in first
    assert others
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in "".join(others)
    assert any("job=a\\nb" in line for line in others)


def test_a_json_log_contains_no_password(
    record: logging.LogRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    before = logging.getLogger().handlers[:]
    try:
        logs.configure("json")
        logging.getLogger().handle(record)
    finally:
        logging.basicConfig(handlers=before, force=True)
    said = capsys.readouterr().err

    assert "redis://u:***@h" in said
    assert_no_secret(said)
    assert len(said.splitlines()) == 1


def test_a_log_line_has_a_bounded_length() -> None:
    huge = logging.LogRecord("x", logging.ERROR, "f.py", 1, "m" * 50_000_000, (), None)

    assert len(logs.TextFormatter().format(huge)) < logs.TEXT_MAX + 200


def test_tracebacks_contain_no_password() -> None:
    try:
        open_transport(REDIS[4].format(p=PASSWORDS[0]))
    except InvalidOption as error:
        assert_no_secret("".join(traceback.format_exception(error)))


def test_a_command_in_a_message_names_the_variable_that_has_the_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RQ_CORE_INBOX_URL", "postgres://ann:hunter2@db:5432/shop")

    said = str(InboxMissing(url="postgresql://ann:***@db:5432/shop"))

    assert '`rq-core inbox migrate "$RQ_CORE_INBOX_URL"`' in said
    assert "***" not in said
    assert "hunter2" not in said


def test_a_command_in_a_message_leaves_out_a_password_that_no_variable_has() -> None:
    said = str(InboxMissing(url="postgresql://ann:hunter2@db/shop"))

    assert "`rq-core inbox migrate postgresql://ann@db/shop`" in said
    assert said.endswith("The commands leave the password out: set PGPASSWORD to it.")
    assert "***" not in said
