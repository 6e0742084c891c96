"""The demo: the whole path on real input, checked at the end. Run it with ``scripts/demo`` or ``rq-core demo``.

It hashes every file of a directory, one job per file, and compresses the larger ones, at most two at once, with
worker processes. One of these is killed half-way. Then it asks SQL whether each was done exactly once and the cap
held. :mod:`sql_audit.demo.tasks` is what a user would write; ``stage`` is
its processes and the judgement, ``run`` one run from the files to the report.
"""
