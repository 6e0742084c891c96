"""``rq-core audit …``: run the mirror, and ask the log. Plugged into ``rq-core`` as
``rq_core.commands``.

`root` lists the commands; each other module holds those of one subject and is imported only when
one of them is used. What is slow to import (SQLAlchemy, rich) is imported in the command that
needs it.
"""

from __future__ import annotations

from sql_audit.cli.root import audit

__all__ = ["audit"]
