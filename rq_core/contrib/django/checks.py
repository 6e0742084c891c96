"""Checks of the setting RQ_CORE, for ``manage.py check``. The backend checks TASKS."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from rq_core.errors import RqCoreError
from rq_core.masking import masked
from rq_core.model.lib.url import check_password

_SERVER: Final = re.compile(r"(rediss?(\+sentinel|\+cluster)?|unix|embedded)://")


def check_project_app(**_: Any) -> Iterator[checks.CheckMessage]:
    """Yield the errors in RQ_CORE. The check connects to nothing."""
    try:
        app = importlib.import_module("rq_core.contrib.django.project_app").app
        check_password(app.redis_url)
    except (ImproperlyConfigured, RqCoreError) as error:
        yield checks.Error(
            f"The project's App cannot be made of RQ_CORE: {error}", id="rq_core.E003"
        )
        return
    if _SERVER.match(app.redis_url) is None:
        yield checks.Error(
            f"RQ_CORE['redis'], or RQ_CORE_REDIS_URL, is {masked(app.redis_url)!r}, which is no URL of a server.",
            hint="Write it as redis://HOST:PORT/0.",
            id="rq_core.E003",
        )
