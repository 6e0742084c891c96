"""Log records that are made inside a handler say for which job.

`rq-core worker` does so by itself. With a logging set-up of your own, add the filter to your handlers:

    handler = logging.StreamHandler()
    handler.addFilter(JobLogFilter())
"""

from __future__ import annotations

import logging

from rq_core.app.handlers.context import job_here


class JobLogFilter(logging.Filter):
    """Gives each record that is made inside a handler ``job``, ``queue``, ``task`` and ``claim``; it drops none.

    Fields that a record has itself stay. Add it to log handlers, not to loggers: loggers below do not ask it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """See logging.Filter."""
        job = job_here()
        if job is not None:
            facts = record.__dict__
            facts.setdefault("job", job.id)
            facts.setdefault("queue", job.queue)
            facts.setdefault("task", job.task)
            facts.setdefault("claim", job.claim)
        return True
