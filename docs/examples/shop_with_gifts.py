from rq_core import App

app = App()


@app.task(queue="shop")
def wrap(order: int) -> None:
    print(f"order {order} is wrapped as a gift")
