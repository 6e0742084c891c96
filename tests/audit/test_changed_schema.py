"""A database whose schema is upgraded while a mirror of the release before runs."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from sql_audit.errors import AuditError, SchemaAhead, SchemaBehind
from sql_audit.mirror.service import run_mirror
from sql_audit.mirror.turn import Mirror
from sql_audit.store import migrate
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import VERSION_TABLE
from tests.kit import auditlog
from tests.kit.outbox import StreamSource, StreamWriter
from tests.kit.wait import wait_until

REFUSALS = (SchemaAhead, SchemaBehind)


def change(database: Database, *statements: str) -> None:
    with database.writing(wait=True) as connection:
        assert connection is not None
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()


def of_version(version: str) -> str:
    return f"UPDATE {VERSION_TABLE} SET version_num = '{version}'"


def refused_at_start(database: Database) -> AuditError:
    with pytest.raises(REFUSALS) as refused:
        migrate.check_current(database)
    return refused.value


def mirrored(database: Database) -> int:
    return sum(
        row["entries"] for row in auditlog.rows(database, "SELECT entries FROM mirror_cursor")
    )


@pytest.mark.parametrize(
    "also",
    ["", "ALTER TABLE mirror_cursor RENAME COLUMN head TO newest"],
    ids=["the version", "a column"],
)
def test_a_running_mirror_stops_when_the_schema_is_upgraded(
    also: str, source: StreamSource, valkey_url: str, database: Database, writer: StreamWriter
) -> None:
    """Checks that the mirror ends with the message of a start, also if its statements fail. The events after the
    upgrade are mirrored later."""
    refused: list[BaseException] = []
    mine = StreamSource(valkey_url)

    def work() -> None:
        try:
            run_mirror(mine, database, stop=threading.Event())
        except BaseException as error:
            refused.append(error)

    writer.life("before")
    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: mirrored(database) == len(writer.log), "the events before are mirrored")
    wait_until(lambda: writer.backlog()[0] == 0, "they have left the outbox")
    before = mirrored(database)
    change(database, of_version("9999"), *([also] if also else []))
    writer.life("after")
    thread.join(20)
    mine.close()

    assert not thread.is_alive()
    assert [(type(error), str(error)) for error in refused] == [
        (SchemaAhead, str(refused_at_start(database)))
    ]
    assert mirrored(database) == before
    assert writer.backlog()[0] == len(writer.log) - before
    undo = ["ALTER TABLE mirror_cursor RENAME COLUMN newest TO head"] if also else []
    change(database, of_version(migrate.needed()), *undo)
    run_mirror(source, database, stop=threading.Event(), once=True)
    assert auditlog.told_by_sql(database, writer.queue) == auditlog.told_by_stream(writer.log)


def test_an_upgrade_of_the_schema_waits_until_no_mirror_is_within_a_batch(
    database: Database,
    writer: StreamWriter,
    make_mirror: Callable[..., Mirror],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checks that the mirror of the release before writes its batch completely before the upgrade, and no batch after
    the upgrade."""
    older, newer = migrate.revisions(), tmp_path / "migrations"
    shutil.copytree(migrate._MIGRATIONS, newer)
    (newer / "versions" / "9998_added.py").write_text(
        f"from alembic import op\nrevision = '9998'\ndown_revision = '{older[-1]}'\n"
        "def upgrade():\n    op.execute('ALTER TABLE mirror_proof ADD COLUMN added INTEGER')\n"
    )
    mirror, steps = make_mirror(), list[str]()
    mirror.turn()
    writer.life("a")

    def upgrade() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(migrate, "_MIGRATIONS", newer)
            patch.setattr(migrate, "revisions", lambda: (*older, "9998"))
            migrate.upgrade_schema(str(database.address.render_as_string(hide_password=False)))
        steps.append("upgraded")

    def waits() -> bool:
        held = "SELECT count(*) AS n FROM pg_locks WHERE NOT granted AND relation = 'mirror_cursor'::regclass"
        return "upgraded" in steps or auditlog.one(database, held)["n"] > 0

    def on_step(step: str) -> None:
        if step == "locked":
            thread.start()
            if database.dialect == "postgresql":
                wait_until(waits, "the upgrade waits for the mirror")
        steps.append(step)

    thread = threading.Thread(target=upgrade)
    mirror._done = on_step
    done = mirror.turn()
    thread.join(20)
    writer.life("b")

    assert done.entries > 0
    assert steps.index("committed") < steps.index("upgraded")
    with pytest.raises(SchemaAhead, match="9998"):
        mirror.turn()
    assert mirrored(database) + writer.backlog()[0] == len(writer.log)
