"""A limit in tokens: each job takes its estimate, and says afterwards what it has really taken."""

from rq_core import App, Cap, PauseScope, Rate, current_job

app = App()


class TooManyRequests(Exception):
    """The service has answered 429. Its client raises this error."""

    retry_after = 30


def complete(model: str, prompt: str) -> tuple[str, int]:
    """Stand for a paid service: return its answer, and the tokens that it has counted."""
    if model == "busy":
        raise TooManyRequests
    return f"{model} says hello", 12


@app.task(
    queue="paid",
    caps=[
        Cap(20, per="model"),
        Rate(90_000, per_seconds=60, per="model", cost="tokens", burst=90_000),
    ],
)
def ask(model: str, prompt: str, tokens: int = 1_500) -> None:
    try:
        answer, used = complete(model, prompt)
    except TooManyRequests as error:
        raise PauseScope("model", after=error.retry_after) from None
    current_job().cost("tokens", used)
    print(answer)


if __name__ == "__main__":
    ask.enqueue("small", "Say hello", tokens=200)
