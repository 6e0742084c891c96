"""Sets Django up when it is imported. A process of isolated handlers imports this module before the module of a task,
since that module may import models."""

import os

from rq_core.contrib.django.setting_up import SETTINGS_VARIABLE, set_up

set_up(os.environ[SETTINGS_VARIABLE])
