from rq_core import App, RetryPolicy

app = App()  # the server that RQ_CORE_REDIS_URL names


@app.task(queue="mail")
def send(tenant: str, to: str) -> None:
    print(f"to {to} for {tenant}")


@app.task(queue="mail", retry=RetryPolicy(max_attempts=1))
def charge(tenant: str, cents: int) -> None:
    raise ConnectionError("the bank does not answer")


if __name__ == "__main__":
    send.enqueue(tenant="acme", to="ada@example.org")
    charge.enqueue(tenant="acme", cents=1999)
