"""The proof: checks whether the log is true, from SQL alone and compared with Redis.

This room replays all events and gives a verdict on the log. It changes neither Redis nor the log, and only adds a row
to ``mirror_proof``.

Read ``verify`` first, then ``replay.replay`` and ``replay.holders``.

- ``replay/``: judges events one by one.
- ``compare/``: compares SQL with Redis.

- ``verify``: the proof of a log.
- ``log``, ``event_details``, ``epoch_starts``: reads events; parses their JSON; the first events of epochs.
- ``trusted_batches``: checks the hashes of batches before a repair or a restore copies their events into Redis.
- ``batch_check``, ``epoch_check``: checks the chain and the cursor; checks the rows about epochs and missing numbers.
- ``row_check``, ``derived_rows``: checks the rows of ``job`` and ``job_attempt``; derives these rows from the events.
- ``schema_check``: checks the schema's tables, triggers, views and indexes.
- ``families``: checks the children of durable jobs.
- ``launches``, ``child_logs``: reads from the parents' log which children there are, and how these ended from theirs.
- ``findings``, ``result``, ``record``: violations and notes; the verdict; the verdict's row in ``mirror_proof``.
"""
