"""Plugins in other packages: rq-core finds them by entry points, and an error names a missing plugin."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest

from rq_core.errors import AuditNotConfigured
from rq_core.model import plugins

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]


def test_every_entry_point_belongs_to_a_group_that_rq_core_loads() -> None:
    assert set(DECLARED) == {plugins.COMMANDS, plugins.AUDIT}


def test_every_declared_command_loads() -> None:
    commands = {name: point.load() for name, point in plugins.commands().items()}

    assert set(DECLARED[plugins.COMMANDS]) <= set(commands)
    assert all(isinstance(command, click.Command) for command in commands.values())


def test_every_plugin_for_the_audit_log_is_declared_and_loads() -> None:
    found = {
        "history": plugins.history_reader(),
        "endings": plugins.endings_opener(),
        "drift": plugins.drift(),
        "mirror": plugins.mirror_command(),
        "reader": plugins.reader_opener(),
        "copies": plugins.copies_opener(),
        "questions": plugins.questions_opener(),
        "relay": plugins.relay_command(),
        "inbox": plugins.inbox_finder(),
        "inbox_reader": plugins.inbox_reader_opener(),
        "inbox_ddl": plugins.inbox_ddl(),
    }

    assert set(found) == set(DECLARED[plugins.AUDIT])
    for name, part in found.items():
        point = EntryPoint(name, DECLARED[plugins.AUDIT][name], plugins.AUDIT)
        assert part is point.load()


def test_the_error_of_a_missing_plugin_says_that_no_package_provides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plugins, "_points", lambda _group: {})

    for find in (
        plugins.history_reader,
        plugins.endings_opener,
        plugins.drift,
        plugins.mirror_command,
        plugins.reader_opener,
    ):
        with pytest.raises(AuditNotConfigured, match="no installed package provides"):
            find()


def test_the_mirror_that_a_supervisor_starts_gets_its_urls_and_ends_with_the_supervisor() -> None:
    command, environment = plugins.mirror_command()("redis://h:1/2", "mine", "sqlite:///a b.db")

    assert command[-2:] == ["--prefix", "mine"]
    assert environment == {
        "RQ_CORE_REDIS_URL": "redis://h:1/2",
        "RQ_CORE_AUDIT_URL": "sqlite:///a b.db",
    }
    assert "--until-stdin-ends" in command
    command, _ = plugins.mirror_command()("redis://h:1/2", "mine", "a.db", ["new", "newer"])
    assert command[-4:] == ["--made", "new", "--made", "newer"]
