import os

SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["rq_core.contrib.django", "shop"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
        "ATOMIC_REQUESTS": True,
    }
}

RQ_CORE = {"redis": os.environ.get("RQ_CORE_REDIS_URL"), "inbox": "default"}
TASKS = {
    "default": {
        "BACKEND": "rq_core.contrib.django.Backend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"max_attempts": 5},
    }
}
