from django.apps import AppConfig
from opentelemetry import trace
from opentelemetry.instrumentation.django import DjangoInstrumentor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

from rq_core.tracing import instrument


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self) -> None:  # in web processes, in workers, and in the processes of isolated tasks
        from rq_core.contrib.django import app

        # In production the exporter is the OTLPSpanExporter of opentelemetry-exporter-otlp.
        provider = TracerProvider(resource=Resource.create({"service.name": "shop"}))
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter()))
        trace.set_tracer_provider(provider)
        DjangoInstrumentor().instrument()  # a span for each request
        instrument(
            app, "parent"
        )  # a task continues the trace of its request, also through the inbox
