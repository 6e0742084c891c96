"""``rq-core`` in this process, as a shell would run it."""

from click.testing import CliRunner, Result

from rq_core.cli.root import root


def command(*words: str, **environment: str | None) -> Result:
    """Run ``command("queues", "--json")``. Exceptions other than rq-core's errors are raised."""
    result = CliRunner().invoke(root, words, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def audit(*words: str, **environment: str | None) -> Result:
    """Run ``audit("head", "--json")``, as `command` does with `rq-core audit`."""
    return command("audit", *words, **environment)
