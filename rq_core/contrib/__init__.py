"""Adapters to frameworks. Each folder adapts rq-core to one framework. Only that folder imports the framework.

- ``django/``: Django projects: settings, database connections, and a backend for Django's own tasks.
"""
