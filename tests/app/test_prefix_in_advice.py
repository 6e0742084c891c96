"""Commands that messages advise. If the key prefix is not the default, an advised command has the option
``--prefix``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import click
import pytest

from rq_core import App, AuditElsewhere, Cap, QueueDamaged, ResultsFull
from rq_core.cli.root import root
from rq_core.connections.async_client import AsyncClient
from rq_core.model.keys import queue_keys


def an_app(url: str, prefix: str) -> App:
    app = App(url, prefix=prefix)

    @app.task(queue="notes", caps=[Cap(2, per="who")])
    def note(who: str) -> None: ...

    return app


@pytest.mark.parametrize(("prefix", "option"), [("rqc", ""), ("other", " --prefix other")])
def test_the_command_for_a_damaged_queue_names_the_key_prefix(
    redis_url: str, prefix: str, option: str
) -> None:
    with an_app(redis_url, prefix) as app:
        note = app.tasks["note"]
        note.enqueue(who="a")
        asked = [["SET", queue_keys("notes", prefix)("state"), "x"]]
        app.client.run(app.client.calls.delivery.ask(asked))
        with pytest.raises(QueueDamaged, match=f"`rq-core doctor notes --repair{option}`"):
            note.enqueue(who="b")
        with pytest.raises(QueueDamaged, match=f"`rq-core doctor notes --repair{option}`"):
            asyncio.run(cancel(redis_url, prefix))


async def cancel(url: str, prefix: str) -> None:
    async with AsyncClient(url, prefix=prefix) as client:
        await client.run(client.calls.admin.cancel("notes", ["a"]))


def test_the_error_of_a_full_store_of_results_names_the_key_prefix_once_in_its_command(
    redis_url: str,
) -> None:
    with an_app(redis_url, "other") as app:
        app.client.run(app.client.calls.admin.configure("notes", {"results_max": 0}))
        with pytest.raises(ResultsFull) as raised:
            app.tasks["note"].with_options(idempotency_key="k").enqueue(who="a")
    assert str(raised.value).count("--prefix other`") == 1


def test_the_advised_command_that_changes_a_limit_set_by_an_operator_names_the_key_prefix(
    redis_url: str,
) -> None:
    with an_app(redis_url, "other") as app:
        caps = app.client.calls.caps
        app.client.run(caps.set("notes", [("note.who", "5", -1)]))
        (kept,) = app.client.run(app.declaration(app.client.calls, "notes"))
    assert "`rq-core cap notes note.who 2 --prefix other` would set" in kept


def commands(of: click.Command, name: str) -> Iterator[tuple[str, bool]]:
    """Yield each command of a group, and whether it has the option ``--prefix``."""
    if isinstance(of, click.Group):
        context = click.Context(of)
        for each in of.list_commands(context):
            below = of.get_command(context, each)
            assert below is not None
            yield from commands(below, f"{name} {each}")
    else:
        yield name, any("--prefix" in each.opts for each in of.params)


@pytest.mark.parametrize(("name", "takes_prefix"), list(commands(root, "rq-core")))
def test_advice_adds_the_key_prefix_only_to_commands_that_have_the_option_prefix(
    name: str, takes_prefix: bool
) -> None:
    error = QueueDamaged(f"run `{name} now`")
    error.name_prefix("other")
    assert ("--prefix other" in str(error)) is takes_prefix


def test_the_advised_command_that_detaches_a_queue_from_its_audit_log_names_the_key_prefix() -> (
    None
):
    error = AuditElsewhere(queue="notes", attached="a1", audit="b2")
    error.name_prefix("other")
    assert "`rq-core audit off notes --force --prefix other`" in str(error)
