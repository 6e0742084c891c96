from collections.abc import Iterator, Mapping

import sentry_sdk

from rq_core import App, JobContext, Outgoing, RetryLater, Snooze

# Also in the processes of isolated handlers, which import this module. SENTRY_DSN says where errors go.
sentry_sdk.init(traces_sample_rate=1.0)

app = App()


@app.outgoing
def sentry_headers(call: Outgoing) -> Mapping[str, str]:
    with sentry_sdk.start_span(op="queue.publish", name=call.task) as span:
        span.set_data("messaging.destination.name", call.queue)
        found = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
    return {name: value for name, value in found.items() if value}


@app.around
def sentry_transaction(job: JobContext) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("queue", job.queue)
        scope.set_tag("job", job.id)
        transaction = sentry_sdk.continue_trace(
            dict(job.headers), op="queue.process", name=job.task, source="task"
        )
        with sentry_sdk.start_transaction(transaction):
            try:
                yield
            except (RetryLater, Snooze):
                raise  # the job is run again: that is no error
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise


@app.task(queue="mail")
def send(tenant: str, to: str) -> None:
    if not to:
        raise ValueError("no address")
    print(f"to {to} for {tenant}")


if __name__ == "__main__":
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        send.enqueue(tenant="acme", to="")
