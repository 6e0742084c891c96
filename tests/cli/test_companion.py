"""Companions: processes that the supervisor of workers starts and ends, such as the mirror."""

from functools import partial
from pathlib import Path

import pytest

from rq_core import App
from rq_core.model import plugins
from rq_core.process.companion import Companion
from sql_audit.queries.history import history_of


@pytest.mark.slow
def test_a_mirror_process_that_is_stopped_during_its_start_still_mirrors_all_events(
    valkey_url: str, tmp_path: Path
) -> None:
    """Checks the mirror that `worker --burst --audit` starts. It gets SIGTERM before it has installed its signal
    handler."""
    audit = str(tmp_path / "audit.db")
    with App(valkey_url) as app:

        @app.task(queue="mail")
        def send() -> None: ...

        job = send.enqueue()
    mirror = Companion("the mirror", partial(plugins.mirror_command(), valkey_url, "rqc", audit))

    mirror.start()
    mirror.end()

    assert 0 == mirror.status
    assert ["enqueued"] == [str(event.type) for event in history_of(audit, job.id, "mail")]
