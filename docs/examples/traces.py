from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from rq_core import App
from rq_core.tracing import instrument

# In production the exporter is the OTLPSpanExporter of opentelemetry-exporter-otlp.
provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

app = App()
instrument(app)


@app.task(queue="mail")
def send(tenant: str, to: str) -> None:
    with trace.get_tracer("shop").start_as_current_span("render the letter"):
        print(f"to {to} for {tenant}")


if __name__ == "__main__":
    with trace.get_tracer("shop").start_as_current_span("POST /orders"):
        send.enqueue(tenant="acme", to="a@b.c")
