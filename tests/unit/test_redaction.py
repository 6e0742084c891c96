"""Texts of errors. Each goes through the app's redactor. If the redactor fails, the text is left out."""

import json
import sys

import pytest

from rq_core import App
from rq_core.app.handlers.redaction import MESSAGE_MAX, describe_error, redacted, redactor_of
from rq_core.errors import InvalidOption
from rq_core.process import worker_process
from tests.kit.secrets import SECRET, broken, redact


def caught(text: str) -> BaseException:
    try:
        raise ValueError(text) from KeyError(text)  # noqa: TRY301 - for its traceback
    except ValueError as error:
        return error


def test_the_redactor_receives_message_traceback_and_causes() -> None:
    plain, kept = describe_error(caught(SECRET)), describe_error(caught(SECRET), redact=redact)

    assert plain.count(SECRET) == 3
    assert SECRET not in kept
    assert json.loads(kept)["message"] == "…"
    assert "Traceback" in json.loads(kept)["traceback"]


def test_the_redactor_receives_the_text_before_it_is_shortened() -> None:
    """A shortened text could have half of a secret, which no redactor would recognise."""
    for place in range(MESSAGE_MAX // 2 - 40, MESSAGE_MAX // 2 + 10):
        text = "x" * place + SECRET + "y" * MESSAGE_MAX

        kept = json.loads(describe_error(caught(text), redact=redact))["message"]

        assert SECRET[: len(SECRET) // 2] not in kept
        assert SECRET[len(SECRET) // 2 :] not in kept


def test_only_the_text_of_an_error_is_lost_if_the_redactor_raises() -> None:
    kept = json.loads(describe_error(caught(SECRET), redact=broken))

    assert kept["type"] == "ValueError"
    assert kept["message"] == "<left out: the redactor raised ValueError>" == kept["traceback"]
    assert redacted(lambda _text: None, SECRET) == "<left out: the redactor returned NoneType>"  # type: ignore[arg-type,return-value]


def test_a_redactor_may_be_given_by_name() -> None:
    assert redactor_of("tests.kit.secrets:redact") is redact
    assert App(redact="tests.kit.secrets:redact").redactor is redact
    assert App(redact=redact).redactor is redact
    assert App().redactor is None


@pytest.mark.parametrize(
    "said", ["", "redact", "tests.kit.secrets", "tests.kit.secrets:", "nowhere:f",
             "tests.kit.secrets:SECRET", "tests.kit.secrets:absent", 5],
)  # fmt: skip
def test_an_app_refuses_invalid_redactors(said: str) -> None:
    with pytest.raises(InvalidOption, match="redact"):
        redactor_of(said)


def test_the_traceback_of_a_handler_does_not_show_that_uvloop_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker's process tries to import uvloop, and runs without uvloop if the import fails. The error of the import
    must not become the context of later errors."""
    monkeypatch.setitem(sys.modules, "uvloop", None)
    told: list[str] = []

    async def main() -> None:
        try:
            raise ZeroDivisionError  # noqa: TRY301 - for its traceback
        except ZeroDivisionError as error:
            told.append(describe_error(error))

    worker_process._run(main())

    assert "ZeroDivisionError" in told[0]
    assert "uvloop" not in told[0]
