"""Adapters to frameworks. Each is a room of its own, and only it imports its framework.

- ``django/``: Django projects: settings, database connections, and a backend for Django's own tasks.
"""
