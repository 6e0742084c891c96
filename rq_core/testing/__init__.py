"""Run an app's tasks in a test, in one process and without a server.

    from rq_core import testing

    def test_welcome_is_sent():
        with testing.fake(app) as fake:
            sign_up("ada@example.org")           # enqueues
            (job,) = fake.enqueued("mail")       # what waits, and what it will be called with
            assert (job.task, job.arguments) == ("send", {"to": "ada@example.org"})
            (ran,) = fake.drain()                # runs what was enqueued, here and now
            assert ran.outcome == "succeeded"

The scripts run on fakeredis (install fakeredis[lua]), in place of the app's server. That is for the
logic of programs that use rq-core; how the scripts behave is proved on real servers only.

- ``fake_app``: an app on a fake server, and the runs of its jobs there.
- ``fake_server``: the server in this process, and the clients that reach it.
"""

from rq_core.testing.fake_app import Enqueued as Enqueued
from rq_core.testing.fake_app import Fake as Fake
from rq_core.testing.fake_app import Ran as Ran
from rq_core.testing.fake_app import fake as fake
from rq_core.testing.fake_app import job_running as job_running
