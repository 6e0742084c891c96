from rq_core import App, Unique

app = App()


@app.task(queue="reports", unique=Unique(per=("tenant", "month")))
def report(tenant: str, month: str = "now") -> None:
    print(f"report of {tenant} for {month}")


@app.task(queue="reports", unique=Unique(per="page", on_duplicate="replace"))
def index(page: str, text: str) -> None:
    print(f"{page}: {text}")


def ask_twice() -> list[str]:
    first = report.enqueue("acme", month="now")
    second = report.enqueue("acme")  # the same name: left out is the default
    return [first.id, second.id] if second.duplicate else []  # one job, and two handles of it


def change_twice() -> str | None:
    index.enqueue("home", "old words")
    return index.enqueue("home", "new words").replaced  # the id of the first job, which is gone
