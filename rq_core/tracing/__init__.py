"""Spans of OpenTelemetry for enqueues and claims (extra ``otel``).

    from rq_core.tracing import instrument

    app = App()
    instrument(app)

Only this package imports OpenTelemetry.

- ``instrumenting``: adds the spans to an app.
- ``providers``: calls a function as soon as the process has a tracer provider.
- ``last_spans``: exports the last spans when a process ends.
- ``conventions``: the names of spans and attributes, and the version of OpenTelemetry's conventions for them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rq_core.tracing.instrumenting import instrument as instrument
else:
    __all__ = ["instrument"]

    def __getattr__(name):
        if name != "instrument":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            import opentelemetry.trace  # noqa: F401 - whether it is installed
        except ImportError as error:
            from rq_core.errors import UsageError
            from rq_core.installing import pip_install

            raise UsageError(f"traces need OpenTelemetry: {pip_install('otel')}") from error
        from rq_core.tracing.instrumenting import instrument

        return instrument
