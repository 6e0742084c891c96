"""Compares a queue's indexes and its log with ``jobs`` and ``state`` (invariant I8), and mends the differences.

`examine` compares a snapshot and does no I/O; `diagnose` reads the queue and compares it; `repair` mends what was
found, as far as Redis or the outbox has the data, and compares again.

    with Client(url) as client:
        found = diagnose(client, "mail")
        left = repair(client, "mail", found, by="ada")

A difference that running workers make for a moment is no finding: a lease that has expired and is not swept yet, or a
job that is due and not promoted yet.

- ``snapshot``: a snapshot of a queue, parsed.
- ``log``: what the outbox says, and an audit database if there is one.
- ``image``, ``lane_positions``, ``result_check``, ``line_check``: what the keys, the positions in lanes, ``results``
  and a state line must have.
- ``comparison``, ``log_check``, ``settings_check``: differences; checks of what cannot be derived; settings, limits and
  lists.
- ``finding``, ``repair``: findings and their edits; examining and repairing.
"""

from rq_core.doctor.finding import Edit, Finding, Kind
from rq_core.doctor.repair import Evidence, diagnose, examine, examined, repair

__all__ = ["Edit", "Evidence", "Finding", "Kind", "diagnose", "examine", "examined", "repair"]
