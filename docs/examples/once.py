from rq_core import App, Debounce, Latest, Throttle, Unique

app = App()


@app.task(queue="reports", unique=Unique(per=("tenant", "month")))
def report(tenant: str, month: str = "now") -> None:
    print(f"report of {tenant} for {month}")


@app.task(queue="reports", unique=Throttle(60, per="user"))
def remind(user: str) -> None:
    print(f"remind {user}")


@app.task(queue="reports", unique=Debounce(5, per="page", at_most=60))
def index(page: str, text: str) -> None:
    print(f"{page}: {text}")


def path_of(url: str, version: int) -> str:
    return url.partition("?")[0]


@app.task(queue="reports", unique=Latest(per=path_of))
def render(url: str, version: int) -> None:
    print(f"version {version} of {url}")


def ask_twice() -> list[str]:
    first = report.enqueue("acme", month="now")
    second = report.enqueue("acme")  # the same name: left out is the default
    return [first.id, second.id] if second.duplicate else []  # one job, and two handles of it


def remind_twice() -> bool:
    remind.enqueue("ada")
    return remind.enqueue("ada").duplicate  # for a minute, even if the first has run by then


def change_twice() -> str | None:
    index.enqueue("home", "old words")
    return index.enqueue("home", "new words").replaced  # the id of the first job, which is gone


def render_twice() -> str | None:
    render.enqueue("/home?a", 1)
    return render.enqueue("/home?b", 2).replaced
