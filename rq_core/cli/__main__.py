"""``python -m rq_core.cli`` is ``rq-core``."""

from rq_core.cli import main

main()
