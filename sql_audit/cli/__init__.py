"""The commands ``rq-core audit …``: run the mirror, and query the log. ``rq-core`` finds these commands by the entry
point ``rq_core.commands``.

`root` lists the commands. Each other module has the commands of one subject, and is imported when one of its commands
runs. Slow imports (SQLAlchemy, rich) are inside the commands that need them.
"""

from __future__ import annotations

from sql_audit.cli.inbox import inbox
from sql_audit.cli.root import audit

__all__ = ["audit", "inbox"]
