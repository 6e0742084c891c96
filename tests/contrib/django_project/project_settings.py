"""Django settings of a project that tests run.

SHOP_DATABASES is a directory for SQLite files, or the user, host, port and database of PostgreSQL.
"""

import os
from typing import Any

KIND, _, PLACE = os.environ["SHOP_DATABASES"].partition(":")


def _database(name: str) -> dict[str, Any]:
    if KIND == "sqlite":
        path = f"{PLACE}/{name}.sqlite3"
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {"timeout": 20},
            "TEST": {"NAME": f"{PLACE}/test_{name}.sqlite3"},
        }
    user, host, port, database = PLACE.split(",")
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": f"{database}_{name}", "USER": user,
        "HOST": host, "PORT": port,
    }  # fmt: skip


DATABASES = {
    "default": {**_database("default"), "ATOMIC_REQUESTS": True},
    "other": _database("other"),
}
INSTALLED_APPS = ["rq_core.contrib.django", "shop"]
RQ_CORE = {
    "redis": os.environ["SHOP_REDIS"],
    "prefix": os.environ["SHOP_PREFIX"],
    "inbox": "default",
}
_BACKEND = "rq_core.contrib.django.Backend"
_QUEUES = ["default", "mail", "low"]
TASKS = {
    "default": {"BACKEND": _BACKEND, "QUEUES": _QUEUES, "OPTIONS": {"max_attempts": 2}},
    "other": {"BACKEND": _BACKEND, "QUEUES": _QUEUES, "OPTIONS": {"database": "other"}},
    "logged": {
        "BACKEND": _BACKEND,
        "QUEUES": _QUEUES,
        "OPTIONS": {"audit_result": "full", "keep_result": 0.05, "max_attempts": 1},
    },
    "often": {"BACKEND": _BACKEND, "QUEUES": _QUEUES, "OPTIONS": {"max_attempts": 3}},
    "digest": {"BACKEND": _BACKEND, "QUEUES": _QUEUES, "OPTIONS": {"keep_result": 0.05}},
    "at_once": {"BACKEND": _BACKEND, "QUEUES": _QUEUES, "OPTIONS": {"database": None}},
}
ROOT_URLCONF = "shop.urls"
SECRET_KEY = "of a test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
