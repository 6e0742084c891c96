"""Whether the log is true: from SQL alone, and compared with Redis.

It owns the replay of all events and what may be said after it. It reads; it changes nothing.

Read ``verify`` first, then ``replay`` and ``holders``.

- ``verify``: the proof of a log.
- ``log``, ``details``, ``batches``, ``epochs``: reading events; their JSON; the chain and the cursor; the numbering.
- ``replay``, ``live``, ``beginnings``, ``holders``, ``names``: judging events one by one; the jobs that are alive;
  those of an epoch's beginning; caps; unique names and remembered ids.
- ``contradictions``: an event against those before, which fields it has, and of whom.
- ``rows``, ``derive``: the rows of ``job`` and ``job_attempt``; what they must be by the events.
- ``catalog``: the schema's tables, triggers, views and indexes.
- ``findings``, ``result``, ``record``: findings; the verdict; its row in ``mirror_proof``.
- ``drift``, ``sides``, ``history``: SQL beside Redis; both as they were at one moment; what SQL has, for the doctor.
"""
