"""From a queue's outbox in Redis to the audit database, each event exactly once.

It owns reading the outbox, checking entries, folding events into rows, noticing what Redis has lost, and trimming
what SQL has. It proves nothing: that is :mod:`sql_audit.proof`.

Read ``turn`` first: one batch, in one direction. ``reading`` says what Redis has behind the cursor, ``intake`` what its
entries say and ``epochs`` what the beginning of an epoch does; ``forks`` finds where Redis' history left SQL's,
``gaps`` where its numbering breaks; ``losses`` takes out what Redis forgot, and ``fold`` makes the rows. ``service``
runs turns until it is told to stop.
"""
