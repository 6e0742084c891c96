"""Creates the tables of the inbox, as ``rq-core inbox migrate`` does."""

from __future__ import annotations

from typing import Any, Final

from django.db import migrations

from rq_core.model.plugins import inbox_ddl

_URLS: Final = {"postgresql": "postgresql://localhost/any", "sqlite": "sqlite:///any.db"}
"""A URL of each kind of database that can have an inbox. Its kind alone decides about the statements."""


def create_tables(_: Any, schema_editor: Any) -> None:
    """Create the tables, unless rqc_inbox exists. A database of another kind can have no inbox, and stays as it is."""
    connection = schema_editor.connection
    if connection.vendor not in _URLS:
        return
    present = set(connection.introspection.table_names())
    if "rqc_inbox" in present:
        return
    for statement in inbox_ddl()(_URLS[connection.vendor]):
        schema_editor.execute(statement, params=None)


class Migration(migrations.Migration):
    """Backwards, the tables stay: their rows are jobs that were committed and not handed over yet."""

    initial = True
    operations = (migrations.RunPython(create_tables, migrations.RunPython.noop),)
