"""The migrations of the app ``rq_core.contrib.django``. They have no models: rq-core reads the tables itself."""
