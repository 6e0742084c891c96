"""The migrations of the app ``rq_core.contrib.django``. They define no models: rq-core reads the tables with SQL."""
