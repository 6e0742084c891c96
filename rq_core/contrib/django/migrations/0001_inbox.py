"""Creates the tables of the inbox, like the command ``rq-core inbox migrate``."""

from __future__ import annotations

from typing import Any, Final

from django.db import migrations

from rq_core.model.plugins import inbox_ddl

_URLS: Final = {"postgresql": "postgresql://localhost/any", "sqlite": "sqlite:///any.db"}
"""A URL of each kind of database that can have an inbox. The statements depend only on the kind."""


def create_tables(_: Any, schema_editor: Any) -> None:
    """Create the tables of the inbox, unless the table rqc_inbox exists. Only PostgreSQL and SQLite get the tables."""
    connection = schema_editor.connection
    if connection.vendor not in _URLS:
        return
    present = set(connection.introspection.table_names())
    if "rqc_inbox" in present:
        return
    for statement in inbox_ddl()(_URLS[connection.vendor]):
        schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    """Creates the tables of the inbox. A reversed migration keeps the tables, since their rows are committed jobs."""

    initial = True
    operations = (migrations.RunPython(create_tables, migrations.RunPython.noop),)
