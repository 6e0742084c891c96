from rq_core import App, RetryPolicy, testing

app = App()


@app.task(queue="mail", retry=RetryPolicy(max_attempts=2))
def send(tenant: str, to: str) -> None:
    if "@" not in to:
        raise ValueError(f"{to} is no address")
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


def test_each_attempt_is_in_the_list() -> None:
    with testing.fake(app) as fake:
        send.enqueue(tenant="acme", to="ada")
        first, second = fake.drain()
        assert (first.claim, first.outcome) == (1, "scheduled")
        assert (second.claim, second.outcome) == (2, "dead")
        assert second.error == "ValueError: ada is no address"  # a text, no exception


async def test_in_an_event_loop() -> None:  # with pytest-asyncio or anyio
    with testing.fake(app) as fake:
        await send.enqueue_async(tenant="acme", to="ada@b.c")
        (ran,) = await fake.drain_async()
        assert ran.outcome == "succeeded"
        await app.aclose()


def test_the_function_itself() -> None:
    send("acme", "ada@b.c")  # a task can be called like the function that it is
