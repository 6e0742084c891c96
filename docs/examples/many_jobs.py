from datetime import UTC, datetime, timedelta

from rq_core import App, Filter, JobsChanged, Replayed, RetryPolicy

app = App(
    audit_payload="full"
)  # the log keeps arguments, so that jobs which have left Redis can be copied
down = {"a"}  # the providers that do not answer


@app.task(queue="mail", retry=RetryPolicy(max_attempts=1))
def send(to: str, provider: str = "a") -> None:
    if provider in down:
        raise TimeoutError(f"provider {provider} does not answer")


def close_account(tenant: str) -> JobsChanged:
    """Cancel the waiting mails of a tenant."""
    of_tenant = Filter(queue="mail", task="send", headers={"tenant": tenant})
    return app.cancel_where(of_tenant, reason="account closed", by="billing")


def let_others_go_first() -> JobsChanged:
    return app.edit_where(Filter(queue="mail", states=("ready",)), priority="low")


def failed(hours: float) -> Filter:
    since = datetime.now(UTC) - timedelta(hours=hours)
    return Filter(queue="mail", error="TimeoutError", between=(since, None))


def requeue_after_the_outage(hours: float) -> JobsChanged:
    """Requeue the jobs that died of the outage, unless there are more than expected."""
    if app.requeue_where(failed(hours), dry_run=True).matched > 10_000:
        raise RuntimeError("look at the queue first")
    return app.requeue_where(failed(hours), reason="the provider is back")


def send_with_another_provider(hours: float) -> Replayed:
    """Enqueue copies of the jobs that died, with another provider. The jobs that died are not changed."""
    return app.replay(failed(hours), args={"provider": "b"}, reason="provider a is down", by="ann")
