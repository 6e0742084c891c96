"""Runs ``rq-core`` in this process, with the result that a shell would see."""

from click.testing import CliRunner, Result

from rq_core.cli.root import root


def command(*words: str, **environment: str | None) -> Result:
    """Run a command, for example ``command("queues", "--json")``. Raises errors that are not rq-core's."""
    result = CliRunner().invoke(root, words, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def audit(*words: str, **environment: str | None) -> Result:
    """Run a command of ``rq-core audit``, for example ``audit("head", "--json")``."""
    return command("audit", *words, **environment)
