from rq_core import App, Cap, Rate

app = App()


def shard_of(tenant: str, to: str) -> str:
    return f"shard-{len(tenant) % 4}"


@app.task(
    queue="mail",
    caps=[
        Cap(10),  # at most 10 of this task at once, across all workers
        Cap(1, per="tenant"),  # at most 1 for each tenant: the key is an argument
        Cap(5, per=shard_of, name="shard"),  # the key is a function of the arguments
        Rate(100, per_seconds=60, per="tenant", burst=5),  # 100 a minute for each tenant
    ],
)
def send(tenant: str, to: str) -> None: ...


app.queue("mail", cap=50)  # at most 50 of the queue at once
app.queue("mail", fair="tenant", weights={"acme": 3})  # tenants take turns, acme three to one
