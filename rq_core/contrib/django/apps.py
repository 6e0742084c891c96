"""The configuration of the app ``rq_core.contrib.django``."""

import contextlib

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules


class RqCoreConfig(AppConfig):
    """Adds the tables of the inbox to the project's migrations, imports the module ``tasks`` of each installed app, and
    checks the settings."""

    name = "rq_core.contrib.django"
    label = "rq_core"
    verbose_name = "rq-core"

    def ready(self) -> None:
        """Import the module ``tasks`` of each installed app, so that workers and producers have all tasks of the
        project. Register the checks of RQ_CORE and TASKS."""
        from rq_core.contrib.django.checks import check_project_app

        checks.register(check_project_app)
        # A project of Django 5.2 without tasks of Django's need not have the package django-tasks.
        if getattr(settings, "TASKS", None):
            with contextlib.suppress(ImproperlyConfigured):
                from rq_core.contrib.django import django_tasks

                django_tasks.register_app_parts()
        autodiscover_modules("tasks")
