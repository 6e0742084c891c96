"""Runs ``rq-core`` in this process, with the same result as in a shell."""

from click.testing import CliRunner, Result

from rq_core.cli.root import root


def command(*words: str, **environment: str | None) -> Result:
    """Run ``command("queues", "--json")``. Exceptions that are not errors of rq-core are raised."""
    result = CliRunner().invoke(root, words, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def audit(*words: str, **environment: str | None) -> Result:
    """Run ``audit("head", "--json")``. Does the same as `command` for ``rq-core audit``."""
    return command("audit", *words, **environment)
