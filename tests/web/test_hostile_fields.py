"""Hostile texts in every field: in each text column of the audit log, and in each key of a queue in Redis."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from rq_core.model.keys import KEYS
from sql_audit.store.schema.tables import metadata
from tests.web.conftest import QUEUE, Browse, Scene
from tests.web.test_hostile import MARKUP, STEERING
from tests.web.test_pages import ADDRESSES, parsed

HOSTILE: Final = MARKUP + STEERING + "z" * 300_000
PAGES: Final = (
    *ADDRESSES.values(), f"/jobs/{QUEUE}/died", f"/jobs/{QUEUE}/done", f"/jobs?queue={QUEUE}&outcome=any",
    f"/log?queue={QUEUE}", f"/jobs?queue={QUEUE}&state=dead",
)  # fmt: skip
PAGE_MAX: Final = 250_000
"""The highest number of characters of a page. Most of them belong to charts and links. A hostile text that a page does
not shorten has more."""
OF_TABLE: Final[dict[str, tuple[str, ...]]] = {
    "job": (f"/jobs/{QUEUE}/died", f"/jobs/{QUEUE}/waits", "/at", "/jobs?q=done"),
    "job_attempt": (f"/jobs?queue={QUEUE}&outcome=any", f"/jobs/{QUEUE}/waits", "/at"),
    "job_event": ("/log", f"/jobs/{QUEUE}/done", f"/schedules/{QUEUE}/beat", "/at"),
    "claim_minute": ("/", "/dead", f"/queues/{QUEUE}"),
}
"""For each table that is listed here: the pages that show most of its data. The other tables belong to the mirror; see
OF_MIRROR."""
OF_MIRROR: Final = ("/", "/audit", "/log")
WHOLE: Final = ("meta", "slots", "expiring", "outbox")
"""Keys with many fields. Few pages show these fields, so each field is tried on only one page."""


def wrong_with(page: Any, paths: Sequence[str] = PAGES) -> list[str]:
    """Return what the hostile text does to these pages, as messages. An empty list means that all is well."""
    found = []
    for path in paths:
        answer = page.get(path)
        text = answer.text
        wrong = {
            f"status {answer.status_code}": answer.status_code not in (200, 303, 400),
            "markup": "<img src" in text or "<script>" in text,
            "steering": bool({"\x1b", "\u202e", "\u2066", "\u200b", "\x00", "\x9b"} & set(text)),
            f"{len(text)} characters": len(text) > PAGE_MAX,
            "open tags": parsed(text).open != [],
            "what is typed is evaluated": "42" in text.partition("</script>&#39;&#34;&amp;")[2][:4],
        }
        found += [f"{path}: {what}" for what, is_so in wrong.items() if is_so]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("table", sorted(metadata.tables))
def test_a_hostile_text_in_a_column_of_the_log_is_shown_as_text(
    busy: Scene, browse: Browse, tmp_path: Path, table: str
) -> None:
    """Checks a text that an operator of the database or another version of the mirror may have written."""
    base = Path(busy.audit_url.removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(base, isolation_level=None)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    columns = metadata.tables[table].columns
    texts = [c.name for c in columns if str(c.type).upper().startswith(("TEXT", "VARCHAR"))]
    found, paths = [], OF_TABLE.get(table, OF_MIRROR)
    for name in texts:
        lie = tmp_path / "lie.db"
        shutil.copy(base, lie)
        with contextlib.closing(sqlite3.connect(lie, isolation_level=None)) as database:
            database.execute("PRAGMA ignore_check_constraints = ON")
            triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
            for (trigger,) in triggers.fetchall():
                database.execute(f"DROP TRIGGER {trigger}")
            database.execute(f"UPDATE OR IGNORE {table} SET {name} = ?", (HOSTILE,))
        busy.audit_url = f"sqlite:///{lie}"
        page = browse(see_arguments=True)
        found += [f"{name}: {each}" for each in wrong_with(page, paths)]

    assert found == [], "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("key", [each.name for each in KEYS])
def test_a_hostile_text_in_a_redis_key_of_a_queue_is_shown_as_text(
    busy: Scene, browse: Browse, key: str
) -> None:
    """Checks each field of each hash, and a member in each list and set."""
    control: Any = busy.seed.control
    name, hostile = busy.seed.keys(key), HOSTILE
    found = []
    paths = PAGES[:1] if key in WHOLE else PAGES
    kind = control.type(name)
    if kind == "hash":
        for field, value in control.hgetall(name).items():
            control.hset(name, field, hostile)
            found += [f"{field}: {each}" for each in wrong_with(browse(see_arguments=True), paths)]
            control.hset(name, field, value)
        control.hset(name, hostile, hostile)
    elif kind == "zset":
        control.zadd(name, {hostile: 1, MARKUP: 2})
    elif kind == "list":
        control.lpush(name, hostile, MARKUP)
    else:
        control.delete(name)
        control.set(name, hostile)

    found += wrong_with(browse(see_arguments=True))
    assert found == [], "\n".join(found)
