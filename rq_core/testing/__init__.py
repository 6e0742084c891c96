"""Runs an app's tasks in a test, in one process and without a server.

    from rq_core import testing

    def test_welcome_is_sent():
        with testing.fake(app) as fake:
            sign_up("ada@example.org")           # enqueues
            (job,) = fake.enqueued("mail")       # the waiting jobs, with their arguments
            assert (job.task, job.arguments) == ("send", {"to": "ada@example.org"})
            (ran,) = fake.drain()                # runs the waiting jobs, in this process
            assert ran.outcome == "succeeded"

rq-core's Lua scripts run on fakeredis (install fakeredis[lua]), in place of the app's server. Use this to test the
logic of programs that use rq-core.

- ``fake_app``: an app on a fake server, and the runs of its jobs there.
- ``fake_server``: the server in this process, and the clients that reach it.
"""

from rq_core.testing.fake_app import Enqueued as Enqueued
from rq_core.testing.fake_app import Fake as Fake
from rq_core.testing.fake_app import Ran as Ran
from rq_core.testing.fake_app import fake as fake
from rq_core.testing.fake_app import job_running as job_running
