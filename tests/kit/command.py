"""``rq-core`` in this process, as a shell would run it."""

from click.testing import CliRunner, Result

from rq_core.cli.root import root


def command(*words: str, **environment: str | None) -> Result:
    """``command("queues", "--json")``. What is no error of rq-core is raised."""
    result = CliRunner().invoke(root, words, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def audit(*words: str, **environment: str | None) -> Result:
    """``audit("head", "--json")``, the same for `rq-core audit`."""
    return command("audit", *words, **environment)
