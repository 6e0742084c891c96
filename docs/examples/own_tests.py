from rq_core import App, testing

app = App()


@app.task(queue="mail")
def send(tenant: str, to: str) -> None:
    print(f"to {to} for {tenant}")


def sign_up(to: str) -> None:
    send.enqueue(tenant="acme", to=to)


def test_who_signs_up_gets_a_mail() -> None:
    with testing.fake(app) as fake:
        sign_up("ada@b.c")
        (job,) = fake.enqueued("mail")
        assert (job.task, job.arguments) == ("send", {"tenant": "acme", "to": "ada@b.c"})
        (ran,) = fake.drain()  # runs what waits, here and now; delays and retries are skipped
        assert ran.outcome == "succeeded"


def test_a_job_can_wait_for_its_hour() -> None:
    with testing.fake(app) as fake:
        send.with_options(delay=3600).enqueue(tenant="acme", to="ada@b.c")
        fake.advance(3600)  # puts the fake server's clock forward
        assert [ran.outcome for ran in fake.drain("mail")] == ["succeeded"]


def test_the_function_itself() -> None:
    send("acme", "ada@b.c")  # a task can be called like the function that it is
