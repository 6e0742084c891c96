"""Creates the schema, and the audit id of this database.

Revision ID: 0001
Revises:

Until the first release, this migration creates the current schema of ``sql_audit/store/schema/ddl.py``, so a change of
the schema needs no migration. README.md in the folder above explains the changes after the first release.
"""

from __future__ import annotations

import secrets

from alembic import op

from sql_audit.store.schema import ddl
from sql_audit.store.schema.tables import audit_meta

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    ddl.create_schema(op.get_bind())
    op.execute(audit_meta.insert().values(one=1, audit_id=secrets.token_hex(16)))
