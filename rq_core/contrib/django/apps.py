"""The configuration of the app ``rq_core.contrib.django``."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class RqCoreConfig(AppConfig):
    """Adds the tables of the inbox to the project's migrations, and imports the module ``tasks`` of each installed
    app."""

    name = "rq_core.contrib.django"
    label = "rq_core"
    verbose_name = "rq-core"

    def ready(self) -> None:
        """Import the module ``tasks`` of each installed app, so that workers and producers have all tasks of the
        project."""
        autodiscover_modules("tasks")
