"""Compares a queue's indexes and log with the keys ``jobs`` and ``state`` (invariant I8), and repairs the differences.

The *state line* of a job is the text in `state` that says where the job is: ready, claimed, dead and so on. The *log*
is the events in the outbox and, if there is one, in the audit database. A *finding* is a difference. `examine` finds
the differences in a snapshot and does no I/O. `diagnose` reads a queue and examines it. `repair` repairs findings as
far as Redis or the outbox has the data, and examines the queue again.

    with Client(url) as client:
        found = diagnose(client, "mail")
        left = repair(client, "mail", found, by="ada")

A difference that is normal for a moment is not a finding. Examples are an expired lease that no claim has ended yet, or
a due job that no claim has promoted yet. A *member* of a key is one field of a hash, or one element of a list or of a
sorted set. A *box* is what the key `boxes` keeps of a durable job: its saved steps (entries) and its signals. The
*life* is the random id of a box. A *lane* is the waiting jobs that have one priority and the same *scopes*: the things
that limits count.

- ``snapshot``: a snapshot of a queue, parsed.
- ``log``: the events of the outbox, and of an audit database if there is one.
- ``image``: the keys and members that a queue should have.
- ``lane_positions``: the positions that the queue's lanes should have.
- ``rate_check``: the times that the queue's rates should have.
- ``result_check``: the contents that ``results`` and ``returned`` should have.
- ``box_check``: the contents that the boxes of durable jobs should have.
- ``box_faults``: compares the boxes with the log.
- ``lost_signals``: the signals that the log has and the boxes lack.
- ``shown_check``: the contents that ``shown`` (the progress and streams of jobs) should have.
- ``line_check``: compares state lines with the log.
- ``comparison``: compares the indexes with the expected ones.
- ``log_check``: checks data that no other key implies.
- ``settings_check``: checks settings, limits and lists.
- ``finding``: findings and their edits.
- ``repair``: examines a queue, and repairs findings.
"""

from rq_core.doctor.finding import Edit, Finding, Kind
from rq_core.doctor.repair import Evidence, diagnose, examine, examined, repair

__all__ = ["Edit", "Evidence", "Finding", "Kind", "diagnose", "examine", "examined", "repair"]
