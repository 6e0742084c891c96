"""Whether the log is true: from SQL alone, and compared with Redis.

It owns the replay of all events and what may be said after it. It reads; it changes nothing.

Read ``verify`` first, then ``replay.replay`` and ``replay.holders``.

- ``replay/``: judging events one by one.
- ``compare/``: SQL beside Redis.

- ``verify``: the proof of a log.
- ``log``, ``event_details``, ``epoch_starts``: reading events; their JSON; how epochs began.
- ``batch_check``, ``epoch_check``: the chain and the cursor; the numbering.
- ``row_check``, ``derived_rows``: the rows of ``job`` and ``job_attempt``; what they must be by the events.
- ``schema_check``: the schema's tables, triggers, views and indexes.
- ``findings``, ``result``, ``record``: findings; the verdict; its row in ``mirror_proof``.
"""
