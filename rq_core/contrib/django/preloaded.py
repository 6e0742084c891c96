"""Sets Django up when this module is imported.

The process of an isolated handler imports this module before the module of the task, which may import Django's models.
"""

import os

from rq_core.contrib.django.setting_up import SETTINGS_VARIABLE, set_up

set_up(os.environ[SETTINGS_VARIABLE])
