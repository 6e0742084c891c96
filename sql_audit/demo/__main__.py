"""Runs the demo: ``python -m sql_audit.demo``."""

from sql_audit.demo.command import demo

demo(prog_name="demo")
