"""From a queue's outbox in Redis to the audit database, each event exactly once.

It owns reading the outbox, checking entries, folding events into rows, noticing what Redis has lost, and trimming
what SQL has. It proves nothing: that is :mod:`sql_audit.proof`.

Read ``turn`` first (one batch), then ``reading``, ``intake`` and ``fold``; ``gaps`` and ``losses`` for what Redis
forgot. ``service`` runs turns until it is told to stop.
"""
