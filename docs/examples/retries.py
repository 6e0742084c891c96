from rq_core import App, DeadJob, GiveUp, RetryLater, RetryPolicy, Snooze, current_job

app = App()


class Busy(Exception):
    """The bank asks to be called again later."""


class NotYetOpen(Exception):
    """The bank opens in the morning."""


class UnknownAccount(Exception):
    """No retry will find the account."""


def bank(account: str, cents: int) -> None:
    """Call a payment service. This function is only an example."""
    if account == "busy":
        raise Busy
    if account == "closed" and current_job().claim == 1:
        raise NotYetOpen
    if account == "unknown":
        raise UnknownAccount
    if account == "down":
        raise ConnectionError("no answer")


def tell_support(job: DeadJob) -> None:
    print(f"{job.task} {job.arguments} is dead: {job.reason} after {job.failures} failures")


@app.task(
    queue="payments",
    retry=RetryPolicy(max_attempts=5, backoff="exponential", base=1.0, jitter="full"),
    timeout=30,  # seconds of one attempt
    on_dead=tell_support,
)
def charge(account: str, cents: int) -> None:
    try:
        bank(account, cents)
    except Busy as error:
        raise RetryLater("the bank is busy", after=30) from error  # spends an attempt
    except NotYetOpen as error:
        raise Snooze(3600) from error  # spends none
    except UnknownAccount as error:
        raise GiveUp("no such account") from error  # dead at once
    print(f"charged {cents} in claim {current_job().claim}")
