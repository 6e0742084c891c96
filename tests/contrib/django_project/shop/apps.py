from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "shop"

    def ready(self) -> None:
        from rq_core.contrib.django import app
        from rq_core.tracing import instrument
        from shop.traces import provider

        instrument(app, tracer_provider=provider)
