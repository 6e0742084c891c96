"""A fragile host: after three failures its jobs wait, and later one job tries it. An operator can pause it, too."""

import sys

from rq_core import App, Breaker, RetryPolicy

app = App()


class NotFound(Exception):
    """The host has answered that it lacks the page, so the host is well."""


def fetch(host: str, page: str) -> str:
    """Stand for a request to a host."""
    if page == "missing":
        raise NotFound(page)
    if host == "ill":
        raise ConnectionError(f"{host} does not answer")
    return f"{page} of {host}"


@app.task(
    queue="pages",
    retry=RetryPolicy(max_attempts=5, base=5.0),
    breaker=Breaker(failures=3, per_seconds=60, cooldown=30, per="host", except_for=(NotFound,)),
)
def read(host: str, page: str) -> None:
    print(fetch(host, page))


def maintain(host: str) -> None:
    """Pause all jobs of a host for an hour."""
    app.pause_scope("pages", f"read.host@60s:failures={host}", after=3_600, reason="maintenance")


def resume(host: str) -> None:
    """End any pause of a host. Its jobs may begin at once."""
    app.resume_scope("pages", f"read.host@60s:failures={host}", reason="it is back")


if __name__ == "__main__":
    if sys.argv[1:2] == ["maintain"]:
        maintain(sys.argv[2])
    else:
        app.enqueue_many([read.job("ill", f"page-{n}") for n in range(5)])
        read.enqueue("well", "index")
